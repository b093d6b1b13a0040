"""The full-text index over a folder of documents: SQLite FTS5 with bm25, beside the log and deletable at any time.

Apart from the reading of files and from the tools, because two processes may build and refresh it at once, and what they write must never be in doubt.
"""

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from refold.runtime.documents import Document, DocumentPart, DocumentsError, Skipped, Source, list_sources, parse, read_bytes

LAYOUT: Final = 2
"""Rises whenever the tables, or what parsing makes of a file, change; an index of another layout is built anew."""
BUSY_TIMEOUT_MS: Final = 30_000
TERMS_MAX: Final = 24
CANNOT_WRITE: Final = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_PERM")
RACY_NS: Final = 2_000_000_000
"""A file that changed this shortly before it was read may have changed again within one tick of the clock: its bytes are compared next time."""
WEIGHTS: Final = "6.0, 3.0, 1.0"
"""What a word counts in title and id, in the headings, in the text."""
STOP_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been by can could did do does for from had has have how i in is it its of on "
        "or our shall should that the their there these they this to was we were what when where which who whom whose why will with would you your",
    )
)

TABLES: Final = """
create table documents (
    doc_id text primary key, root text, signature text, seen_ns integer, hash text, mtime_ns integer, title text, fields text, notes text, reason text
) without rowid;
create table parts (id integer primary key, doc_id text, number integer, names text, heading text, text text, unique (doc_id, number));
create virtual table titles using fts5(doc_id unindexed, names, tokenize='porter unicode61');
create virtual table words using fts5(names, heading, text, content='parts', content_rowid='id', tokenize='porter unicode61')
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A document as the index knows it; `mtime_ns` is the file's."""

    doc_id: str
    title: str
    fields: dict[str, str]
    content_hash: str
    mtime_ns: int
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A part that matches. `snippet` is the piece of its text around the matches."""

    doc_id: str
    part: int
    heading: str
    snippet: str


class Index:
    """The parts of the documents below some folders, as of the last `refresh`. One connection; used from one thread at a time."""

    def __init__(self, folders: Sequence[Path], path: Path | None) -> None:
        self._folders, self._path = tuple(folders), path
        self.skipped: tuple[Skipped, ...] = ()
        self._sources, listed = list_sources(self._folders)
        self._db = _open(path)
        self._store(self._sources, listed)

    def refresh(self) -> None:
        """Bring the index in step with the files. Only those whose size, times or inode changed are read."""
        try:
            self._sources, listed = list_sources(self._folders)
        except DocumentsError as error:
            self._sources, listed = [], [Skipped(path=".", reason=str(error))]
        self._store(self._sources, listed)

    def search(self, terms: Sequence[str], limit: int) -> tuple[list[Hit], dict[str, int]]:
        """The best parts for these words, and in how many parts each word occurs.

        A part's rank is the sum of the bm25 of its words, times the share of the words it holds; the first part of a document, where it says what it is,
        has the rank of its title on top.
        Words are bound as quoted strings and can be no query syntax.
        """
        scores: dict[int, list[float]] = {}
        counts: dict[str, int] = {}
        for term in terms[:TERMS_MAX]:
            rows = self._rows(f"select rowid, bm25(words, {WEIGHTS}) from words where words match ?", _quoted(term))
            counts[term] = len(rows)
            for row, score in rows:
                scores.setdefault(row, []).append(-score)
        any_term = " OR ".join(_quoted(term) for term in counts)
        titled = "select parts.id, bm25(titles) from titles join parts on parts.doc_id = titles.doc_id and parts.number = 1 where titles match ?"
        for row, score in self._rows(titled, any_term):
            scores.setdefault(row, []).append(-score)
        best = sorted(scores, key=lambda row: (-sum(scores[row]) * (len(scores[row]) / len(counts)), row))[:limit]
        return [hit for row in best for hit in self._hits(row, any_term)], counts

    def entry(self, doc_id: str) -> Entry | None:
        for row in self._rows("select doc_id, title, fields, hash, mtime_ns, notes from documents where doc_id = ? and reason = ''", doc_id):
            return Entry(doc_id=row[0], title=row[1], fields=json.loads(row[2]), content_hash=row[3], mtime_ns=row[4], notes=tuple(json.loads(row[5])))
        return None

    def parts(self, doc_id: str) -> list[DocumentPart]:
        rows = self._rows("select number, heading, text from parts where doc_id = ? order by number", doc_id)
        return [DocumentPart(number=number, heading=heading, text=text) for number, heading, text in rows]

    def ids(self) -> list[str]:
        """The ids of all documents, sorted."""
        return [row[0] for row in self._rows("select doc_id from documents where reason = '' order by doc_id")]

    def size(self) -> int:
        """How many parts there are."""
        return int(self._rows("select count(*) from parts")[0][0])

    def close(self) -> None:
        self._db.close()

    def __del__(self) -> None:
        # Newer versions of Python warn of a connection that nobody closed.
        with contextlib.suppress(AttributeError, sqlite3.Error):
            self._db.close()

    def _rows(self, sql: str, *values: object) -> list[Any]:
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.DatabaseError:
            self._rebuild()
            return self._db.execute(sql, values).fetchall()

    def _hits(self, row: int, any_term: str) -> list[Hit]:
        found = "select doc_id, number, parts.heading, snippet(words, 2, '', '', ' … ', 40) from words join parts on parts.id = words.rowid"
        sql = f"{found} where words match ? and words.rowid = ?"
        rows = self._rows(sql, any_term, row)
        return [Hit(doc_id=doc_id, part=number, heading=heading, snippet=" ".join(snippet.split())) for doc_id, number, heading, snippet in rows]

    def _store(self, sources: list[Source], skipped: list[Skipped]) -> None:
        try:
            self._update(sources)
        except sqlite3.DatabaseError as error:
            self._rebuild(in_memory=error.sqlite_errorname.startswith(CANNOT_WRITE))
        unread = self._rows("select doc_id, reason from documents where reason != '' order by doc_id")
        self.skipped = (*skipped, *(Skipped(path=doc_id, reason=reason) for doc_id, reason in unread))
        if sources and not self.ids():
            names = ", ".join(str(folder) for folder in self._folders)
            raise DocumentsError(f"no readable documents in {names}; the last one: {self.skipped[-1].path}: {self.skipped[-1].reason}")

    def _rebuild(self, *, in_memory: bool = False) -> None:
        """Whatever is wrong with the file, it holds nothing that is not in the folder: it is made anew, or in memory when it cannot be written."""
        self._db.close()
        self._db = _open(None if in_memory else self._path, anew=True)
        try:
            self._update(self._sources)
        except sqlite3.DatabaseError:
            self._db.close()
            self._db = _open(None)
            self._update(self._sources)

    def _update(self, sources: list[Source]) -> None:
        known = self._known()
        if not _stale(sources, known) and known.keys() == {source.doc_id for source in sources}:
            return
        with _transaction(self._db):
            known = self._known()  # Another process may have done the work while this one waited.
            for doc_id in known.keys() - {source.doc_id for source in sources}:
                self._forget(doc_id)
            for source in _stale(sources, known):
                if source.doc_id in known:
                    self._refresh_one(source, known[source.doc_id][3])
                else:
                    self._add(source)

    def _known(self) -> dict[str, tuple[str, str, int, str]]:
        rows = self._db.execute("select doc_id, root, signature, seen_ns, hash from documents")
        return {doc_id: (root, signature, seen_ns, digest) for doc_id, root, signature, seen_ns, digest in rows}

    def _refresh_one(self, source: Source, digest: str) -> None:
        seen_ns = time.time_ns()
        with contextlib.suppress(OSError, ValueError):
            if digest and parse(source, read_bytes(source)).content_hash == digest:
                sql = "update documents set root = ?, signature = ?, seen_ns = ?, mtime_ns = ? where doc_id = ?"
                self._db.execute(sql, (str(source.root), source.signature, seen_ns, source.mtime_ns, source.doc_id))
                return
        self._forget(source.doc_id)
        self._add(source)

    def _forget(self, doc_id: str) -> None:
        self._db.execute(
            "insert into words (words, rowid, names, heading, text) select 'delete', id, names, heading, text from parts where doc_id = ?", (doc_id,)
        )
        self._db.execute("delete from parts where doc_id = ?", (doc_id,))
        self._db.execute("delete from titles where doc_id = ?", (doc_id,))
        self._db.execute("delete from documents where doc_id = ?", (doc_id,))

    def _add(self, source: Source) -> None:
        seen_ns = time.time_ns()
        document, reason = None, ""
        try:
            document = parse(source, read_bytes(source))
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__
        row = (
            (document.content_hash, source.mtime_ns, document.title, _json(document.fields), _json(document.notes))
            if document
            else ("", source.mtime_ns, "", "{}", "[]")
        )
        self._db.execute(
            "insert into documents values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (source.doc_id, str(source.root), source.signature, seen_ns, *row, reason)
        )
        if document:
            names = _names(document)
            self._db.execute("insert into titles values (?, ?)", (source.doc_id, names))
            rows = [(source.doc_id, part.number, names, part.heading, part.text) for part in document.parts]
            first = self._db.execute("select coalesce(max(id), 0) from parts").fetchone()[0]
            self._db.executemany(
                "insert into parts (id, doc_id, number, names, heading, text) values (?, ?, ?, ?, ?, ?)", ((first + n, *row) for n, row in enumerate(rows, 1))
            )
            self._db.executemany(
                "insert into words (rowid, names, heading, text) values (?, ?, ?, ?)", ((first + n, *row[2:]) for n, row in enumerate(rows, 1))
            )


def query_terms(query: str) -> list[str]:
    """The words of a question worth looking for: each once, in order, without the commonest ones unless there are no others."""
    words = list(dict.fromkeys(word.lower() for word in re.findall(r"\w+(?:[.-]\w+)*", re.sub(r"['’]s\b", "", query))))
    return [word for word in words if word not in STOP_WORDS] or words


def _quoted(term: str) -> str:
    return '"' + term.replace('"', '""') + '"'


def _names(document: Document) -> str:
    """Title and id as words; a number also without leading zeros, because people do not write them."""
    words = [*re.findall(r"[^\W\d_]+|\d+", document.doc_id), document.title]
    return " ".join([*words, *(str(int(word)) for word in words if word.isascii() and word.isdigit() and word.startswith("0"))])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")


def _stale(sources: list[Source], known: dict[str, tuple[str, str, int, str]]) -> list[Source]:
    def same(source: Source) -> bool:
        root, signature, seen_ns, _ = known.get(source.doc_id, ("", "", 0, ""))
        return root == str(source.root) and signature == source.signature and source.mtime_ns + RACY_NS < seen_ns

    return [source for source in sources if not same(source)]


def _open(path: Path | None, *, anew: bool = False) -> sqlite3.Connection:
    """A connection with the tables in place; in memory when there is no path, or none that can be written."""
    if path is not None:
        for remove in (anew, True):
            if remove:
                for suffix in ("", "-journal"):
                    with contextlib.suppress(OSError):
                        Path(f"{path}{suffix}").unlink(missing_ok=True)
            with contextlib.suppress(OSError, sqlite3.DatabaseError):
                path.parent.mkdir(parents=True, exist_ok=True)
                return _prepared(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
    return _prepared(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))


def _prepared(db: sqlite3.Connection) -> sqlite3.Connection:
    try:
        db.execute(f"pragma busy_timeout = {BUSY_TIMEOUT_MS}")
        db.execute("pragma synchronous = off")  # What a crash loses is in the folder.
        if db.execute("pragma user_version").fetchone()[0] != LAYOUT:
            with _transaction(db):
                if db.execute("pragma user_version").fetchone()[0] != LAYOUT:
                    for name in ("words", "titles", "parts", "documents"):
                        db.execute(f"drop table if exists {name}")
                    for statement in TABLES.split(";"):
                        db.execute(statement)
                    db.execute(f"pragma user_version = {LAYOUT}")
        db.execute("select count(*) from documents")
    except sqlite3.DatabaseError:
        db.close()
        raise
    return db


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("begin immediate")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.DatabaseError):
            db.execute("rollback")
        raise
    db.execute("commit")
