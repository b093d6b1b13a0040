"""`diff`: two runs side by side, for people: what they share, then turn by turn what is another."""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from refold.events.codec import read
from refold.projections.differences import Difference, Pair
from refold.projections.turns import Course
from refold.runtime.cli import options as o, output
from refold.runtime.cli.exits import COMPLETED, FOUND, Refused
from refold.runtime.cli.naming import exported, is_file, no_folder
from refold.runtime.cli.render import Page, compact, counted, cut, one_line, short, thousands, visible, wrapped
from refold.runtime.cli.stores import opened
from refold.runtime.diff import Diff, Side, compare, course_of

LINES: Final = 3
"""Of a value, at most; all of it is in `--json`."""
PIPED: Final = 1_000
"""Characters of a line that goes to a file or a pipe."""
CONTEXT: Final = 24
"""Characters that are shown in front of the first one that is another."""


def diff(options: o.Diff) -> int:
    """Compare two runs of the store, or exported files."""
    found = compare(_course(options, options.left), _course(options, options.right))
    if options.json:
        output.document(found.as_json())
    else:
        names = found.left.run_id, found.right.run_id
        if names[0] == names[1]:
            names = one_line(options.left), one_line(options.right)
        for line in lines(found, names, Page()):
            if not output.line(line):
                break
    return COMPLETED if found.same else FOUND


def _course(options: o.Diff, name: str) -> Course:
    """A run as it went. Raises Refused for a file that is not whole."""
    if name != "-" and not is_file(name):
        with no_folder(name), opened(options) as store:
            return course_of(store.read(store.find(name)))
    export = exported(name)
    verified = export.verify()
    if not verified.ok:
        raise Refused(f"{export.name} is damaged at position {verified.broken_at} ({verified.why}); it is compared with nothing")
    return course_of(read(stored, export.load) for _, stored in export.rows)


def lines(found: Diff, names: tuple[str, str], page: Page) -> Iterator[str]:
    """The page of what `diff` found; `names` are what the two runs are called."""
    yield from _heads(found, names, page)
    apart = True
    for kind, pairs in groupby(found.turns, _kind):
        group = list(pairs)
        if kind in ("same", "minor"):
            yield from [""] * apart
            yield from (page.paint(line, "dim") for line in page.paragraphs(f"{_turns(group)}  the same{_but_for(group)}"))
            apart = False
        else:
            for pair in group:
                yield ""
                yield from _changed(pair, names, page)
            apart = True
    yield ""
    yield from page.paragraphs(_sum(found, names))


# -- the two runs


def _heads(found: Diff, names: tuple[str, str], page: Page) -> Iterator[str]:
    rows = [_row(sign, name, side) for sign, name, side in zip("-+", names, (found.left, found.right), strict=True)]
    for line in page.table(("", "RUN", "STATUS", "TURNS", "TOKENS", "COST", "MODEL"), rows):
        sign = line[:1]
        yield page.paint(sign, COLOUR[sign]) + line[1:] if sign in COLOUR else line
    if common := _common(found, names):
        yield from page.paragraphs(common)


COLOUR: Final = {"-": "red", "+": "green"}


def _row(sign: str, name: str, side: Side) -> tuple[str, ...]:
    return sign, name, side.status, thousands(side.turns), thousands(side.tokens), f"${side.cost_usd}", one_line(side.model)


def _common(found: Diff, names: tuple[str, str]) -> str:
    """What the two have in common, and how one came from the other."""
    told = []
    if found.shared is not None:
        whole = found.shared.position == found.left.position == found.right.position
        told.append("they are one and the same" if whole else f"they share records 1-{found.shared.position}")
    for name, side, other_name in ((names[0], found.left, names[1]), (names[1], found.right, names[0])):
        if side.origin is not None and side.from_other:
            told.append(f"{name} is a {side.origin.kind} of {other_name} at {side.origin.at}")
    return ": ".join(told)


# -- turns


def _kind(pair: Pair) -> str:
    return "minor" if pair.minor else pair.verdict


def _turns(pairs: list[Pair]) -> str:
    """Turns that follow one another, by number in both runs."""
    numbered = [pair for pair in pairs if pair.left != 0]
    begun = "goal and settings" if len(numbered) < len(pairs) else ""
    if not numbered:
        return begun
    ranges = dict.fromkeys(_range(first, last) for first, last in ((numbered[0].left, numbered[-1].left), (numbered[0].right, numbered[-1].right)) if first)
    turns = f"turn{'s' * (len(numbered) > 1)} {' / '.join(ranges)}"
    return f"{begun}, {turns}" if begun else turns


def _range(first: int | None, last: int | None) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _but_for(pairs: list[Pair]) -> str:
    fields = dict.fromkeys(difference.field.split(".")[0] for pair in pairs for difference in pair.differences)
    return f" but for {', '.join(fields)}" if fields else ""


def _changed(pair: Pair, names: tuple[str, str], page: Page) -> Iterator[str]:
    """A turn that is another in the two, or that one has alone."""
    alone = {"only_left": f"only in {names[0]}", "only_right": f"only in {names[1]}"}.get(pair.verdict)
    head, words = _turns([pair]), alone or _in_words(pair)
    yield (page.paint(head, "bold") + "  " + page.paint(cut(words, page.room(len(head) + 2)), "yellow" if alone else "dim")).rstrip()
    spent = [difference for difference in pair.differences if difference.field.startswith(("usage.", "cost_usd"))]
    for difference in pair.differences:
        if difference not in spent and not (alone and difference.minor):
            yield from _difference(difference, page)
    if spent and not alone:
        told = ", ".join(f"{d.field} {compact(d.left)} → {compact(d.right)}" for d in spent).replace('"', "")
        yield from (page.paint(line, "dim") for line in page.paragraphs(told, "    "))


def _in_words(pair: Pair) -> str:
    """What kind of change it is: a model that saw the same and decided otherwise, or something that came from outside."""
    if not pair.left:
        return ""
    if any(_decides(difference.field) for difference in pair.differences):
        return "the same prompt, another decision" if pair.same_prompt else "another decision"
    return "the same decision, another outcome" if any(difference.field.startswith("calls[") for difference in pair.differences) else ""


def _decides(field: str) -> bool:
    first, _, rest = field.partition(".")
    return first in ("answer", "refusal", "interrupted") or (first.startswith("calls[") and (not rest or rest.startswith("arguments")))


def _difference(difference: Difference, page: Page) -> Iterator[str]:
    """A field: what it is in the one run, and in the other."""
    values = difference.left, difference.right
    texts = [_text(difference.field, value) for value in values]
    if texts[0] == texts[1] and None not in values:
        texts = [visible(compact(value)) for value in values]
    label = f"{one_line(difference.field)}: "
    if None not in values and max(map(len, texts)) > page.room(4 + len(label), otherwise=PIPED):
        texts = _from_where_they_part(texts)
    for sign, value, text in zip("-+", values, texts, strict=True):
        if value is not None:
            yield from (page.paint(f"  {' ' if n else sign} {line}", COLOUR[sign]) for n, line in enumerate(_wrapped(label + text, page)))


def _from_where_they_part(texts: list[str]) -> list[str]:
    """Long texts without most of what both begin with."""
    same = next((n for n, (one, other) in enumerate(zip(*texts, strict=False)) if one != other), min(map(len, texts)))
    begin = same - CONTEXT
    if begin <= CONTEXT:
        return texts
    begin = texts[0].find(" ", begin, same) + 1 or begin  # at a word, where there is one
    return ["…" + text[begin:] for text in texts]


def _wrapped(text: str, page: Page) -> list[str]:
    """A text on a few lines."""
    if page.width is None:
        return [cut(text, PIPED)]
    columns = page.width - 4
    return wrapped(cut(text, columns + (LINES - 1) * (columns - 8)), columns, rest="  ")


def _text(field: str, value: Any) -> str:
    """A value on one line."""
    if field == "history":
        return "what another run said and saw"
    if isinstance(value, str):
        return one_line(value) or compact(value)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return one_line("; ".join(value))
    if isinstance(value, dict) and field == "ended":
        return one_line(": ".join(value.values()))
    if isinstance(value, dict) and field.startswith("calls[") and "." not in field:
        gave = value.get("result")
        result = f" → {short(gave, 200)}" if value["kind"] == "success" else f" → {value['kind']}"
        return f"{one_line(value['name'], 64)} {short(value['arguments'], 200)}".strip() + result
    if isinstance(value, dict) and field.startswith("tools."):
        return one_line(str(value.get("description", "")))
    return visible(compact(value))


# -- the end


def _sum(found: Diff, names: tuple[str, str]) -> str:
    """All turns in one sentence."""
    if found.same:
        return f"no difference in {counted(found.left.turns, 'turn')}"
    counts = Counter(_kind(pair) for pair in found.turns if pair.left != 0)
    words = {"changed": "changed", "only_left": f"only in {names[0]}", "only_right": f"only in {names[1]}", "minor": "at another price", "same": "the same"}
    told = "turns: " + ", ".join(f"{thousands(counts[kind])} {each}" for kind, each in words.items() if counts[kind])
    return f"goal or settings differ; {told}" if found.turns[0].verdict != "same" else told
