"""The full-text index and the tools over it: in step with the files, safe for two processes, and never in the way of an answer."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refold.runtime.documents import DocumentsError
from refold.runtime.index import Index, query_terms
from refold.runtime.research import Library, research_tools
from refold.runtime.tools import ToolResult


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "tea.md").write_text("# Tea\n\nTea is made with hot water.\n\n## Cups\n\nA cup holds 250 ml.\n")
    (folder / "coffee.md").write_text("# Coffee\n\nCoffee is made with beans.\n")
    return folder


def found(library: Library, query: str) -> list[str]:
    return [str(hit["id"]) for hit in library.search(query)["results"]]


def test_the_best_part_comes_first_and_words_are_counted(docs: Path) -> None:
    answer = Library([docs], None).search("How many ml does a cup hold?")
    assert answer["results"][0]["id"] == "tea#2"
    assert answer["parts_with_word"] == {"many": 0, "ml": 1, "cup": 1, "hold": 1}
    assert answer["parts_total"] == 3


def test_changes_of_files_are_seen_by_the_next_search(docs: Path, tmp_path: Path) -> None:
    library = Library([docs], tmp_path / "index.db")
    # when a file changes without a change of size, one goes, and one comes
    (docs / "tea.md").write_text((docs / "tea.md").read_text().replace("hot water", "old water"))
    (docs / "coffee.md").unlink()
    (docs / "milk.md").write_text("# Milk\n\nMilk comes from cows.\n")
    assert found(library, "old") == ["tea#1"]
    assert found(library, "hot") == found(library, "beans") == []
    assert found(library, "cows") == ["milk#1"]
    # and another one that opens the same index sees the same
    assert found(Library([docs], tmp_path / "index.db"), "cows") == ["milk#1"]


def test_an_unchanged_folder_is_not_written_again(docs: Path, tmp_path: Path) -> None:
    for path in docs.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    Index([docs], tmp_path / "index.db").close()
    before = (tmp_path / "index.db").stat().st_mtime_ns
    index = Index([docs], tmp_path / "index.db")
    index.refresh()
    index.close()
    assert (tmp_path / "index.db").stat().st_mtime_ns == before


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\x00" + bytes(5000)])
def test_a_damaged_index_is_built_anew(docs: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index.db").write_bytes(content)
    assert found(Library([docs], tmp_path / "index.db"), "beans") == ["coffee#1"]


def test_an_index_that_is_damaged_or_deleted_while_it_is_open_does_not_stop_a_search(docs: Path, tmp_path: Path) -> None:
    library = Library([docs], tmp_path / "index.db")
    (tmp_path / "index.db").write_bytes(b"x" * 20_000)
    assert found(library, "beans") == ["coffee#1"]
    (tmp_path / "index.db").unlink()
    assert found(library, "beans") == ["coffee#1"]
    assert library.read("tea")[0]["title"] == "Tea"


def test_without_a_place_to_write_the_index_is_kept_in_memory(docs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert found(Library([docs], tmp_path / "file" / "index.db"), "beans") == ["coffee#1"]


@pytest.mark.slow
def test_two_processes_may_build_one_index_at_once(docs: Path, tmp_path: Path) -> None:
    for number in range(60):
        (docs / f"note-{number}.md").write_text(f"# Note {number}\n\nThe number is {number}.\n")
    opened = f"Library([Path({str(docs)!r})], Path({str(tmp_path / 'i.db')!r}))"
    code = f"from pathlib import Path\nfrom refold.runtime.research import Library\nprint(len({opened}.search('number', 25)['results']))"
    running = [subprocess.Popen([sys.executable, "-P", "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    for process in running:
        out, error = process.communicate(timeout=60)
        assert (process.returncode, out.strip()) == (0, b"25"), error
    assert len(Library([docs], tmp_path / "i.db").search("number", 25)["results"]) == 25


@pytest.mark.parametrize(
    "query", ['"', "tea AND", "NEAR(tea", "tea*", "words:tea", "'; drop table parts; --", "-tea", "^tea", "{names} : tea", "tea\0", "ﬁ 茶 \u0301"]
)
def test_a_query_is_words_and_never_syntax(docs: Path, query: str) -> None:
    library = Library([docs], None)
    with contextlib.suppress(ValueError):  # some of these hold no words at all
        library.search(query)
    assert found(library, "beans") == ["coffee#1"]


def test_a_query_without_words_is_an_error_in_one_line(docs: Path) -> None:
    with pytest.raises(ValueError, match="no words"):
        Library([docs], None).search(" ?! ")


def test_common_words_are_left_out_unless_there_are_no_others() -> None:
    assert query_terms("What is the version of PEP-8's tea 3.10 tea?") == ["version", "pep-8", "tea", "3.10"]
    assert query_terms("to be or not") == ["not"]
    assert query_terms("who is it") == ["who", "is", "it"]


def test_a_document_is_read_by_its_id_or_by_part(docs: Path) -> None:
    library = Library([docs], None)
    whole, sources = library.read("tea")
    assert (whole["title"], whole["parts"], whole["next_part"]) == ("Tea", ["1: Tea", "2: Cups"], None)
    assert sources == ["tea", "tea#1", "tea#2"]
    for arguments in (("tea#2", None), ("tea", 2), ("[tea#2]", None)):
        part, sources = library.read(*arguments)
        assert [piece["text"].strip() for piece in part["text"]] == ["A cup holds 250 ml."]
        assert sources == ["tea", "tea#2"]


def test_a_long_document_is_paged(docs: Path) -> None:
    (docs / "long.md").write_text("\n\n".join(f"Paragraph {number}. " + "word " * 150 for number in range(60)))
    library = Library([docs], None)
    first, _ = library.read("long")
    assert sum(len(piece["text"]) for piece in first["text"]) <= 8_000
    following, _ = library.read("long", first["next_part"])
    assert following["text"][0]["id"] == f"long#{first['next_part']}"
    assert library.read("long", first["parts_total"])[0]["next_part"] is None


@pytest.mark.parametrize(
    ("doc_id", "part", "words"),
    [
        ("te", None, "closest ids are tea"),
        ("../docs/tea", None, "no document"),
        ("/etc/passwd", None, "no document"),
        ("tea#9", None, "parts 1 to 2"),
        ("tea", 0, "parts 1 to 2"),
        ("tea#1", 2, "names part 1"),
        ("", None, "no document"),
    ],
)
def test_an_id_that_is_not_there_is_an_error_in_one_line(docs: Path, doc_id: str, part: int | None, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        Library([docs], None).read(doc_id, part)
    assert "\n" not in str(error.value)


def test_evidence_says_status_version_date_successor_and_hash_and_no_time_of_day(docs: Path) -> None:
    (docs / "rule-0001.rst").write_text(
        "RULE: 1\nTitle: Old rule\nStatus: Superseded\nVersion: 1.2\nCreated: 2020-01-02\nSuperseded-By: 2, other.md, 99\n\nText.\n"
    )
    (docs / "rule-0002.rst").write_text("RULE: 2\nTitle: New rule\nStatus: Active\n\nText.\n")
    (docs / "other.md").write_text("Other.\n")
    evidence = Library([docs], None).read("rule-0001")[0]["metadata"]
    assert {name: evidence[name] for name in ("status", "version", "date", "superseded_by")} == {
        "status": "Superseded",
        "version": "1.2",
        "date": "2020-01-02",
        "superseded_by": ["rule-0002", "other", "99"],
    }
    assert len(evidence["content_hash"]) == 64
    assert len(evidence["file_date"]) == len("2020-01-02")


def test_skipped_files_are_listed_with_the_reason(docs: Path) -> None:
    (docs / "picture.png").write_bytes(b"\x89PNG")
    (docs / "empty.md").write_text("")
    library = Library([docs], None)
    assert [(one.path, one.reason) for one in library.skipped] == [("picture.png", "files ending in '.png' are not read"), ("empty", "it holds no text")]
    assert library.search("tea")["skipped_files"][1] == "empty: it holds no text"


def test_a_folder_in_which_nothing_can_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.md").write_text("")
    with pytest.raises(DocumentsError, match="no readable documents"):
        research_tools([tmp_path], None)


def test_the_tools_have_fixed_names_and_effects_and_say_what_was_read(docs: Path) -> None:
    tools = {tool.name: tool for tool in research_tools([docs], None)}
    assert {name: tool.effect for name, tool in tools.items()} == {
        "search_kb": "read",
        "read_document": "read",
        "calculate": "read",
        "store_observation": "idempotent",
    }
    searched, read = tools["search_kb"](query="beans"), tools["read_document"](doc_id="coffee")
    assert isinstance(searched, ToolResult)
    assert list(searched.source_ids) == []
    assert list(read.source_ids) == ["coffee", "coffee#1"]
    stored = tools["store_observation"](text="Beans.", source_ids=["coffee"])
    assert [(note.text, list(note.source_ids)) for note in stored.notes] == [("Beans.", ["coffee"])]
    assert tools["calculate"](expression="1 + 1").data["result"] == "2"
