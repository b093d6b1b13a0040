"""Files of a folder as documents: ids, titles, header fields, and parts by heading and then by size.

Apart from the index, because this is where hostile file names, links and encodings are met; nothing below knows a database.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from refold.runtime.markup import Fields, Section, html_sections, pdf_sections, plain_sections, split_header

SUFFIXES: Final = (".md", ".rst", ".txt", ".html", ".htm", ".pdf")
"""What is read, in the order in which files of one name get the plain id."""
FILE_BYTES_MAX: Final = 32 * 1024 * 1024
FILES_MAX: Final = 20_000
PART_CHARS_MAX: Final = 2_400
SKIPPED_MAX: Final = 1_000


class DocumentsError(ValueError):
    """A folder of documents cannot be used; one line that names the folder and says why."""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A file that is not read. `path` is relative to its folder and safe to print."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file that is a document. `signature` changes when the file does: size, mtime, ctime and inode, as decimal text."""

    doc_id: str
    root: Path
    path: Path
    mtime_ns: int
    signature: str


@dataclass(frozen=True, kw_only=True)
class DocumentPart:
    """A piece of a document, numbered from 1. `heading` is the path of headings above it, outermost first, joined by ` > `."""

    number: int
    heading: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Document:
    """What one file holds. `fields` are the header's, with names in lower case; `notes` say what reading it could not keep."""

    doc_id: str
    title: str
    fields: dict[str, str]
    parts: tuple[DocumentPart, ...]
    content_hash: str
    notes: tuple[str, ...] = field(default=())


def list_sources(folders: Sequence[Path]) -> tuple[list[Source], list[Skipped]]:
    """Every readable document below the folders, sorted by id, and every file left out.

    An id is the path below the folder without suffix. The first file keeps it; another of the same name and folder is called with its suffix
    (`annual.txt`), one of a later folder with that folder's name before it (`other/annual`), and what still collides gets `~2`, `~3`.
    Files of one name are taken in the order of `SUFFIXES`.
    Raises `DocumentsError` for a folder that is missing, not a folder, or holds nothing to read.
    """
    if not folders:
        raise DocumentsError("no folder of documents was given")
    sources: dict[str, Source] = {}
    skipped: list[Skipped] = []
    for number, folder in enumerate(folders):
        root = _root(folder)
        for path, status in sorted(_walk(root, skipped), key=lambda found: (found[0].with_suffix("").as_posix(), SUFFIXES.index(found[0].suffix.lower()))):
            relative = path.relative_to(root)
            doc_id = _free_id(relative, root.name if number else "", sources)
            signature = f"{status.st_size}.{status.st_mtime_ns}.{status.st_ctime_ns}.{status.st_ino}"
            sources[doc_id] = Source(doc_id=doc_id, root=root, path=path, mtime_ns=status.st_mtime_ns, signature=signature)
    if not sources:
        names = ", ".join(str(folder) for folder in folders)
        raise DocumentsError(f"no readable documents in {names} (read are {', '.join(SUFFIXES)}; {len(skipped)} files were skipped)")
    return [sources[doc_id] for doc_id in sorted(sources)], skipped


def read_bytes(source: Source) -> bytes:
    """The file's bytes; raises OSError when it is no longer a plain file below its folder."""
    if not source.path.parent.resolve().is_relative_to(source.root):
        raise PermissionError("it left its folder")
    descriptor = os.open(source.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PermissionError("it is not a plain file")
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise OSError(f"it is larger than {FILE_BYTES_MAX} bytes")
    return content


def parse(source: Source, content: bytes) -> Document:
    """The document in these bytes. Raises ValueError with the reason when there is no text in them."""
    suffix, title, header = source.path.suffix.lower(), "", ""
    notes: list[str] = []
    fields: Fields = []
    if suffix == ".pdf":
        title, sections = pdf_sections(content)
    else:
        text, notes = _decode(content)
        if suffix in (".html", ".htm"):
            title, fields, sections = html_sections(text)
            header = "\n".join(f"{name}: {value}" for name, value in fields)
        else:
            fields, header, body = split_header(text)
            title, sections = plain_sections(body, suffix)
    named = {name.lower().replace("_", "-").replace(" ", "-"): value for name, value in reversed(fields)}
    title = " ".join((named.get("title") or title or source.path.stem.replace("_", " ")).split())
    parts = tuple(_parts(title, header, sections))
    if not parts:
        raise ValueError("it holds no text")
    return Document(doc_id=source.doc_id, title=title, fields=named, parts=parts, content_hash=hashlib.sha256(content).hexdigest(), notes=tuple(notes))


def _root(folder: Path) -> Path:
    if not folder.exists():
        raise DocumentsError(f"the folder of documents {folder} does not exist")
    if not folder.is_dir():
        raise DocumentsError(f"{folder} is not a folder of documents but a file")
    return folder.resolve()


def _walk(root: Path, skipped: list[Skipped]) -> Iterator[tuple[Path, os.stat_result]]:
    """Plain files with a suffix that is read. Links are never followed: what they name is either below the folder anyway or must not be read."""

    def skip(path: Path, reason: str) -> None:
        if len(skipped) < SKIPPED_MAX:
            skipped.append(Skipped(path=_printable(path.relative_to(root).as_posix()), reason=reason))

    folders, count = [root], 0
    while folders:
        here = folders.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            skip(here, f"cannot be listed: {error.strerror}")
            continue
        for entry in entries:
            path = here / entry.name
            reason = _unfit(entry, path)
            if reason:
                skip(path, reason)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif (count := count + 1) > FILES_MAX:
                skip(path, f"there are more than {FILES_MAX} files")
            else:
                yield path, entry.stat(follow_symlinks=False)


def _unfit(entry: os.DirEntry[str], path: Path) -> str:
    """Why an entry is left out, or nothing."""
    try:
        entry.name.encode("utf-8")
        if entry.name.startswith("."):
            return "hidden"
        if entry.is_symlink():
            return "a link; links are not followed"
        status = entry.stat(follow_symlinks=False)
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if stat.S_ISDIR(status.st_mode):
        return ""
    if not stat.S_ISREG(status.st_mode):
        return "not a plain file"
    if path.suffix.lower() not in SUFFIXES:
        return f"files ending in {path.suffix!r} are not read" if path.suffix else "a file without suffix is not read"
    return f"larger than {FILE_BYTES_MAX} bytes" if status.st_size > FILE_BYTES_MAX else ""


def _free_id(relative: Path, prefix: str, taken: dict[str, Source]) -> str:
    plain, full = (_citable(path.as_posix()) for path in (relative.with_suffix(""), relative))
    within = [f"{_citable(prefix)}/{plain}", f"{_citable(prefix)}/{full}"] if prefix else []
    choices = [plain, *(within or [full])]
    number = 2
    while choices[0] in taken:
        if len(choices) == 1:
            choices.append(f"{full}~{number}")
            number += 1
        choices.pop(0)
    return choices[0]


def _citable(name: str) -> str:
    """Brackets, `#` and control characters would end a citation early; they are written as in a URL."""
    return re.sub(r"[\[\]#\x00-\x1f\x7f]", lambda found: f"%{ord(found[0]):02X}", name)


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name.encode("utf-8", "backslashreplace").decode("utf-8"))


def _decode(content: bytes) -> tuple[str, list[str]]:
    notes = []
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = content.decode("utf-16", "replace")
    else:
        text = content.decode("utf-8-sig", "replace")
        if "\ufffd" in text and "\ufffd".encode() not in content:
            notes.append("it is not valid UTF-8; what could not be read is shown as \ufffd")
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
        notes.append("its NUL characters are shown as \ufffd")
    return text.replace("\r\n", "\n").replace("\r", "\n"), notes


def _parts(title: str, header: str, sections: Sequence[Section]) -> Iterator[DocumentPart]:
    number = 1
    for heading, text in [((), header), *sections]:
        for piece in _pieces(text.strip("\n")):
            yield DocumentPart(number=number, heading=" > ".join(heading) or title, text=piece)
            number += 1


def _pieces(text: str) -> Iterator[str]:
    """Pieces of at most `PART_CHARS_MAX` characters, cut between paragraphs, else between lines, else anywhere; only the last cut splits a word."""
    text, start = text.rstrip(), 0
    while len(text) - start > PART_CHARS_MAX:
        low, high = start + PART_CHARS_MAX // 4, start + PART_CHARS_MAX
        end = next((at for mark in ("\n\n", "\n", " ") if (at := text.rfind(mark, low, high)) > 0), high)
        if piece := text[start:end].rstrip():
            yield piece
        start = end + (text[end : end + 1] == "\n")
    if text[start:].strip():
        yield text[start:].lstrip("\n")
