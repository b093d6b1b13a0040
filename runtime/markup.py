"""Markup as sections: reStructuredText, Markdown, HTML and PDF read into headings and text, and the header fields at the top.

Apart from the documents, so that a format is one function here; headings and fields are all that is understood of a format, the text stays as it was written.
"""

import html
import io
import logging
import re
from collections.abc import Iterator
from typing import Final

Section = tuple[tuple[str, ...], str]
"""The path of headings, outermost first and without the title, and the text below the last of them."""
Fields = list[tuple[str, str]]

FIELD: Final = re.compile(r"^(?:[-*] )?(?::|\*\*)?([A-Za-z][A-Za-z0-9_-]*(?: [A-Za-z0-9_-]+){0,2})(?:\*\*:|:\*\*|:)(?:[ \t]+(.*))?$")
UNDERLINE: Final = re.compile(r"^([=\-`:'\"~^_*+#<>.])\1{2,}\s*$")
ATX: Final = re.compile(r"^(#{1,6})[ \t]+(\S.*)$")
HEADER_FIELDS_MIN: Final = 2


def split_header(text: str) -> tuple[Fields, str, str]:
    """The fields at the top, their text, and the rest.

    Read are blocks of `Name: value` lines as in a mail (continued by indented lines), also below the first heading, and YAML front matter of plain keys.
    A block of a single field is prose unless it is front matter.
    """
    lines = text.split("\n")
    start = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if lines[start].strip() == "---":
        end = next((n for n in range(start + 1, len(lines)) if lines[n].strip() in ("---", "...")), None)
        if end is not None:
            block = lines[start + 1 : end]
            return _front_matter(block), "\n".join(block), "\n".join(lines[end + 1 :])
    title_end = _heading_at_top(lines, start)
    first = next((n for n in range(title_end, len(lines)) if lines[n].strip()), title_end)
    last = first
    while last < len(lines) and lines[last].strip():
        last += 1
    fields = _mail_fields(lines[first:last])
    if len(fields) < HEADER_FIELDS_MIN:
        return [], "", text
    return fields, "\n".join(lines[first:last]), "\n".join([*lines[:title_end], *lines[last:]])


def plain_sections(text: str, suffix: str) -> tuple[str, list[Section]]:
    """Title and sections of Markdown (`.md`) or of text with underlined headings. The title is the first heading if nothing stands before it."""
    found = list(_markdown_headings(text) if suffix == ".md" else _underlined_headings(text))
    return _nest(text.split("\n"), found)


def html_sections(text: str) -> tuple[str, Fields, list[Section]]:
    """Title, `meta` fields and sections of a page. Scripts and styles are left out."""
    page = _Page()
    _feed(page, text)
    _, sections = _nest(page.lines, page.headings)
    first = page.headings[0][2] if page.headings else ""
    return page.title or first, page.fields, sections


def pdf_sections(content: bytes) -> tuple[str, list[Section]]:
    """The pages of a PDF as sections. Raises ValueError with the reason when it cannot be read."""
    try:
        import pypdf
    except ImportError:
        raise ValueError("reading PDF needs: pip install 'refold[pdf]'") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # What it complains about is told as the reason, or read over.
    try:
        reader = pypdf.PdfReader(io.BytesIO(content))
        title = str((reader.metadata.title if reader.metadata else "") or "")
        pages = [(page.extract_text() or "").replace("\0", "\ufffd") for page in reader.pages]
    except Exception as error:  # noqa: BLE001 - the library raises whatever a broken file provokes
        raise ValueError(f"it is not a readable PDF: {type(error).__name__}") from None
    return title, [((f"Page {number}",), text) for number, text in enumerate(pages, 1) if text.strip()]


# -- header fields


def _heading_at_top(lines: list[str], start: int) -> int:
    """The line after a heading that stands first, else `start`."""
    if ATX.match(lines[start]):
        return start + 1
    if UNDERLINE.match(lines[start]) and start + 2 < len(lines) and UNDERLINE.match(lines[start + 2]):
        return start + 3
    if start + 1 < len(lines) and UNDERLINE.match(lines[start + 1]) and not UNDERLINE.match(lines[start]):
        return start + 2
    return start


def _mail_fields(lines: list[str]) -> Fields:
    fields: Fields = []
    for line in lines:
        found = FIELD.match(line)
        if found:
            fields.append((found[1], (found[2] or "").strip()))
        elif fields and line[:1] in " \t":
            fields[-1] = (fields[-1][0], f"{fields[-1][1]} {line.strip()}".strip())
        else:
            return []
    return fields


def _front_matter(lines: list[str]) -> Fields:
    fields: Fields = []
    for line in lines:
        found = FIELD.match(line)
        if found and not line.startswith(("-", " ")):
            fields.append((found[1], (found[2] or "").strip().strip("\"'")))
        elif fields and (item := line.strip().removeprefix("- ").strip("\"'")):
            fields[-1] = (fields[-1][0], f"{fields[-1][1]}, {item}".strip(", "))
    return fields


# -- headings: (first line, line after it, text, level)

Heading = tuple[int, int, str, int]


def _markdown_headings(text: str) -> Iterator[Heading]:
    lines, fence = text.split("\n"), ""
    for number, line in enumerate(lines):
        mark = re.match(r"^\s{0,3}(```+|~~~+)", line)
        if mark:
            if not fence:
                fence = mark[1][:3]
            elif mark[1].startswith(fence):
                fence = ""
        elif fence:
            continue
        elif found := ATX.match(line):
            yield number, number + 1, found[2].rstrip().rstrip("#").rstrip() or found[2].strip(), len(found[1])
        elif number and re.match(r"^(=+|-{3,})\s*$", line) and lines[number - 1].strip() and (number < 2 or not lines[number - 2].strip()):
            yield number - 1, number + 1, lines[number - 1].strip(), 1 if line[0] == "=" else 2


def _underlined_headings(text: str) -> Iterator[Heading]:
    """Headings as in reStructuredText: a level is a kind of underline, in the order of their first use."""
    lines, levels = text.split("\n"), list[tuple[str, bool]]()
    number = 1
    while number < len(lines):
        above = lines[number - 1]
        under = UNDERLINE.match(lines[number])
        if not under or not above.strip() or above[:1] in " \t" or UNDERLINE.match(above) or len(lines[number].rstrip()) < min(len(above.strip()), 4):
            over = number + 1 < len(lines) and UNDERLINE.match(above) and lines[number].strip() and UNDERLINE.match(lines[number + 1])
            if over and above[0] == lines[number + 1][0] and not under:
                yield number - 1, number + 2, lines[number].strip(), _level(levels, (above[0], True))
                number += 2
        elif number < 2 or not lines[number - 2].strip():
            yield number - 1, number + 1, above.strip(), _level(levels, (under[1], False))
            number += 1
        number += 1


def _level(levels: list[tuple[str, bool]], kind: tuple[str, bool]) -> int:
    if kind not in levels:
        levels.append(kind)
    return levels.index(kind) + 1


def _nest(lines: list[str], headings: list[Heading]) -> tuple[str, list[Section]]:
    """Sections in order. A heading that stands first and alone on its level is the title and is not repeated in the paths."""
    before = "\n".join(lines[: headings[0][0]] if headings else lines)
    sections: list[Section] = [((), before)] if before.strip() else []
    titled = bool(headings) and not before.strip() and sum(level <= headings[0][3] for *_, level in headings) == 1
    path: list[tuple[int, str]] = []
    for number, (_, start, name, level) in enumerate(headings):
        end = headings[number + 1][0] if number + 1 < len(headings) else len(lines)
        path = [above for above in path if above[0] < level]
        if not (titled and number == 0):
            path.append((level, name))
        text = "\n".join(lines[start:end])
        if text.strip():
            sections.append((tuple(name for _, name in path), text))
    return (headings[0][2] if titled else ""), sections


MARKUP: Final = re.compile(r"<(?:[!?][^<>]*|(/?)([a-zA-Z][^\s/<>]*)([^<>]*))>")
"""A tag, declaration or instruction that is closed before the next one opens; any other `<` is text."""
ATTRIBUTE: Final = re.compile(r"""([a-zA-Z:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
LONG_NUMBER: Final = re.compile(r"&#[xX]?[0-9a-fA-F]{8,};?")


def _feed(page: "_Page", text: str) -> None:
    """Tell the page what stands in it, in one pass: the standard parser takes quadratic time over markup that is never closed, and documents are not to be trusted."""
    text = LONG_NUMBER.sub("\ufffd", _without_comments(text))
    behind = 0
    for found in MARKUP.finditer(text):
        page.handle_data(html.unescape(text[behind : found.start()]))
        behind = found.end()
        closing, tag, attributes = found.groups()
        if tag and closing:
            page.handle_endtag(tag.lower())
        elif tag:
            page.handle_starttag(tag.lower(), [(name.lower(), html.unescape(a or b or c)) for name, a, b, c in ATTRIBUTE.findall(attributes)])
    page.handle_data(html.unescape(text[behind:]))


def _without_comments(text: str) -> str:
    """What is left without comments; one that is never closed goes to the end."""
    kept, behind = [], 0
    while (start := text.find("<!--", behind)) >= 0:
        kept.append(text[behind:start])
        end = text.find("-->", start + 4)
        behind = end + 3 if end >= 0 else len(text)
    return "".join([*kept, text[behind:]])


class _Page:
    """Collects lines, headings, the title and `meta` fields of a page."""

    BLOCKS: Final = frozenset(
        re.findall(
            r"\w+",
            "address article aside blockquote br dd div dl dt figure footer form h1 h2 h3 h4 "
            "h5 h6 header hr li main nav ol p pre section table tbody td th tr ul",
        )
    )
    SILENT: Final = frozenset({"script", "style", "template", "noscript"})

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.headings: list[Heading] = []
        self.fields: Fields = []
        self.title = ""
        self._silent = 0
        self._heading: tuple[int, int] | None = None
        self._in_title = self._preformatted = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str]]) -> None:
        named = dict(attrs)
        if tag == "meta" and named.get("name") and named.get("content"):
            self.fields.append((str(named["name"]), " ".join(str(named["content"]).split())))
        self._silent += tag in self.SILENT
        self._in_title = tag == "title"
        self._preformatted = self._preformatted or tag == "pre"
        if tag in self.BLOCKS:
            self._break(paragraph=tag not in ("br", "td", "th", "tr", "li"))
        if re.fullmatch(r"h[1-6]", tag):
            self._heading = (len(self.lines) - 1, int(tag[1]))

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in self.SILENT and self._silent > 0
        self._in_title = self._in_title and tag != "title"
        self._preformatted = self._preformatted and tag != "pre"
        if self._heading and re.fullmatch(r"h[1-6]", tag):
            start, level = self._heading
            self._heading = None
            name = " ".join(" ".join(self.lines[start:]).split())
            self._break(paragraph=True)
            if name:
                self.headings.append((start, len(self.lines) - 1, name, level))
        elif tag in self.BLOCKS:
            self._break(paragraph=tag not in ("td", "th", "tr", "li"))

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title = " ".join(f"{self.title}{data}".split())
        elif not self._silent:
            first, *more = data.split("\n") if self._preformatted else [re.sub(r"\s+", " ", data)]
            self.lines[-1] += first if self.lines[-1] or self._preformatted else first.lstrip()
            self.lines.extend(more)

    def _break(self, *, paragraph: bool) -> None:
        if self.lines[-1].strip():
            self.lines.append("")
        if paragraph and len(self.lines) > 1 and self.lines[-2].strip():
            self.lines.append("")
