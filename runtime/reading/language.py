"""What the offline model knows of English: word stems, sentences, numbers, and the words that carry no subject.

Apart from the model, because nothing here knows of tools, documents or questions; it is a small grammar and no list of subjects.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final


def word_set(text: str) -> frozenset[str]:
    """The words of a text with single spaces."""
    return frozenset(text.split())


WORD: Final = re.compile(r"v?\d+(?:\.\d+)+|[^\W_]+")
NUMBER: Final = re.compile(r"(?<![\w.])[-−]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w])|(?<![\w.])[-−]?\d+(?:\.\d+)?(?!\w)")
NUMBER_WORDS: Final = word_set(
    "single one two three four five six seven eight nine ten eleven twelve thirteen fifteen sixteen eighteen twenty thirty forty fifty sixty "
    "hundred thousand dozen"
)
DATE: Final = re.compile(r"\b(?:1[89]|20)\d\d\b")
VERSION: Final = re.compile(r"\b\d+\.\d+")
NAME: Final = re.compile(r"\b[A-ZÀ-Þ][\w.'’-]*(?: (?:van|von|de|der|den|la))*(?: [A-ZÀ-Þ][\w.'’-]+)+")
LITERAL: Final = re.compile(
    r"``[^`\n]+``|`[^`<>\n]+`(?!_)|\"[^\"\n]{1,40}\"|(?<!\w)--?[a-zA-Z][\w-]*|\b\w+(?:_\w+)+\b|\b\w+\(\)|\b[\w-]+\.[a-z]{2,5}\b|"
    r"\b(?!(?:MUST|MAY|SHOULD|SHALL|NOT|TODO|NOTE)\b)[A-Z]{3,}[A-Z0-9_-]*\b|\b[A-Z]?[a-z]+[A-Z]\w*\b"
)
"""What is not an ordinary word: code, a quotation, an option, a file, a constant, a name in camel case."""

ASKING: Final = word_set("what which who whom whose when where why how")
STOP: Final = ASKING | word_set(
    "a an the this that these those it its they them their there here he she his her we our us i me my you your is are was were be been being am "
    "do does did done has have had having can could will would shall should may might must of in on at by for from to into onto with without "
    "within as about than then so if or and but not no nor only also just over under between among during per via up out off through because "
    "while until since both each any some all every many much more most such same other own too very"
)
LIGHT: Final = word_set(
    "accord add aim call current currently define describe document exact exactly find first get give go introduce mean mention name new offer "
    "officially please propose proposal provide recommend say show specify state suggest take tell use used answer question make exist "
    "contain hold value store keep list include indicate denote represent"
)
"""Words of asking and stating: a question holds them whatever it is about."""
IRREGULAR: Final = dict(
    pair.split(":")
    for pair in word_set(
        "wrote:write written:write grew:grow grown:grow growth:grow gave:give given:give got:get chose:choose chosen:choose fell:fall fallen:fall rose:rise "
        "risen:rise became:become began:begin begun:begin made:make held:hold kept:keep said:say took:take taken:take sold:sell went:go gone:go found:find "
        "left:leave built:build children:child people:person indices:index behaviour:behavior dictionary:dict dictionaries:dict maximal:maximum minimal:minimum"
    )
)
ABBREVIATION: Final = re.compile(r"(?:\b(?:e\.g|i\.e|etc|cf|vs|Mr|Mrs|Ms|Dr|St|No|Fig|approx|al)|\b[A-Z])\.$")


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """A word without its inflection; a number without leading zeros."""
    word = word.lower()
    if word.isdecimal():
        return word.lstrip("0") or "0"
    word = IRREGULAR.get(word, word)
    if not word.isascii() or len(word) < 4 or any(c.isdigit() for c in word):
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith("sses"):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for suffix in ("ization", "isation"):
        if word.endswith(suffix):
            return word[: -len(suffix)] + "iz"
    word = re.sub(r"is(e|ed|ing)$", r"iz\1", word) if len(word) > 6 else re.sub(r"(..)our$", r"\1or", word)
    for suffix in ("ing", "ed", "ation", "ly"):
        root = word.removesuffix(suffix)
        if root != word and len(root) >= 3 and re.search(r"[aeiouy]", root):
            word = root + ("at" if suffix == "ation" else "")
            if suffix in ("ing", "ed") and len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            elif suffix in ("ing", "ed") and re.fullmatch(r"[^aeiou][aeiouy][^aeiouwxy]", word):
                word += "e"
            break
    word = word[:-1] if word.endswith("e") and len(word) > 4 else word
    word = word[:-2] if word.endswith("at") and len(word) > 6 else word
    return word[:-1] + "i" if word.endswith("y") and len(word) > 3 else word


def stem_set(text: str) -> frozenset[str]:
    """The stems of the words of a text with single spaces."""
    return frozenset(stem(word) for word in text.split())


STOP_STEMS: Final = frozenset(stem(word) for word in STOP) | STOP
LIGHT_STEMS: Final = frozenset(stem(word) for word in LIGHT)


def words(text: str) -> list[str]:
    """The words as they stand; `_` and punctuation separate, a version number is one word."""
    return [word.removeprefix("v") if re.fullmatch(r"v\d+(?:\.\d+)+", word) else word for word in WORD.findall(text)]


def stems(text: str) -> list[str]:
    return [stem(word) for word in words(text)]


def content(text: str) -> list[str]:
    """The stems that say what a text is about, once each, in order.

    Parts of a word with hyphens count even when they are common words alone, and so do single capitals (`C`) and names (`Go`).
    """
    joined = {stem(word) for compound in re.findall(r"\w+(?:-\w+)+", text) for word in words(compound)}
    letters = {letter.lower() for letter in re.findall(r"(?<![\w'’])[B-HJ-Z](?![\w'’])", text)}
    proper = {stem(word) for word in words(text)[1:] if word[0].isupper()} - STOP_STEMS
    found = [stem(word) for word in words(re.sub(r"['’]s\b", "", text))]
    return list(
        dict.fromkeys(
            one for one in found if one in joined | letters | proper or (one not in STOP_STEMS and one not in LIGHT_STEMS and (len(one) > 1 or one.isdigit()))
        )
    )


def sentences(text: str) -> Iterator[str]:
    """Sentences, list items and lines of tables, each with its white space made single. Blocks of code (indented, after `::`) and comments are left out."""
    code_from = -1
    for block in re.split(r"\n[ \t]*\n", text):
        lines = [line for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        indent = len(lines[0]) - len(lines[0].lstrip())
        if 0 <= code_from < indent:
            continue
        code_from = indent if block.rstrip().endswith("::") or re.match(r"\s*\.\. (?:code|sourcecode|literalinclude|image|figure|doctest)", block) else -1
        if not lines[0].lstrip().startswith((".. ", ">>>")):
            for item in re.split(r"\n(?=\s*(?:[-*+•|]|(?:\d+|#)[.)])\s)", "\n".join(lines)):
                yield from _split(" ".join(re.sub(r"^\s*(?:[-*+•]|(?:\d+|#)[.)])\s+", "", item).split()))


def _split(line: str) -> Iterator[str]:
    start = 0
    for end in re.finditer(r"[.!?][\"”')\]*`]*\s+(?=[\"“'(\[*`:]*[A-Z0-9])", line):
        if not ABBREVIATION.search(line[start : end.end()].rstrip()):
            yield line[start : end.end()].strip()
            start = end.end()
    if line[start:].strip():
        yield line[start:].strip()
