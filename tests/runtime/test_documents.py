"""Files of a folder as documents: what is read, under which id, in which parts, and what is left out and why."""

import os
from pathlib import Path

import pytest

from refold.runtime.documents import PART_CHARS_MAX, Document, DocumentsError, list_sources, parse, read_bytes
from refold.runtime.markup import html_sections


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, doc_id: str) -> Document:
    source = next(source for source in list_sources([folder])[0] if source.doc_id == doc_id)
    return parse(source, read_bytes(source))


def reasons(folder: Path) -> dict[str, str]:
    return {one.path: one.reason for one in list_sources([folder])[1]}


def test_an_id_is_the_path_below_the_folder_without_suffix(tmp_path: Path) -> None:
    for name in ("2023/annual.md", "2024/annual.rst", "top.txt", "web/page.HTML"):
        write(tmp_path, name, "Some text.")
    assert [source.doc_id for source in list_sources([tmp_path])[0]] == ["2023/annual", "2024/annual", "top", "web/page"]


def test_files_that_would_share_an_id_are_told_apart_the_same_way_every_time(tmp_path: Path) -> None:
    # given one name with two suffixes, and the same name in a second folder
    for name in ("a/x.txt", "a/x.md", "b/x.md"):
        write(tmp_path, name, "Some text.")
    ids = {source.doc_id: source.path.relative_to(tmp_path).as_posix() for source in list_sources([tmp_path / "a", tmp_path / "b"])[0]}
    assert ids == {"x": "a/x.md", "x.txt": "a/x.txt", "b/x": "b/x.md"}


def test_characters_that_would_end_a_citation_are_escaped(tmp_path: Path) -> None:
    write(tmp_path, "a[1]#2.md", "Some text.")
    assert [source.doc_id for source in list_sources([tmp_path])[0]] == ["a%5B1%5D%232"]


def test_what_is_not_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    # given links out of the folder, a hidden file, a picture, and a named pipe
    outside = write(tmp_path, "secret.md", "A secret.")
    folder = tmp_path / "docs"
    write(folder, "good.md", "Some text.")
    write(folder, ".hidden.md", "Some text.")
    write(folder, "picture.png", b"\x89PNG")
    (folder / "link.md").symlink_to(outside)
    (folder / "parent").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.md")
    found = reasons(folder)
    assert set(found) == {".hidden.md", "picture.png", "link.md", "parent", "pipe.md"}
    assert "link" in found["link.md"]
    assert ".png" in found["picture.png"]
    assert [source.doc_id for source in list_sources([folder])[0]] == ["good"]


def test_a_name_that_is_not_utf8_is_skipped_and_shown_safely(tmp_path: Path) -> None:
    write(tmp_path, "good.md", "Some text.")
    try:
        (tmp_path / os.fsdecode(b"bad\xff.md")).write_text("x")
    except OSError:
        pytest.skip("this file system takes no such names")
    assert reasons(tmp_path) == {"bad\\xff.md": "its name is not UTF-8"} or "\udcff" not in "".join(reasons(tmp_path))


def test_bytes_that_are_no_text_are_shown_as_such_and_noted(tmp_path: Path) -> None:
    write(tmp_path, "odd.txt", b"caf\xe9 and \x00 nul")
    document = read(tmp_path, "odd")
    assert document.parts[0].text == "caf\ufffd and \ufffd nul"
    assert len(document.notes) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "a file"),
        (lambda path: path.mkdir(), "no readable documents"),
        (lambda path: (path.mkdir(), (path / "x.bin").write_text("x")), "no readable documents"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named_in_one_line(tmp_path: Path, make: object, words: str) -> None:
    make(tmp_path / "docs")  # type: ignore[operator]
    with pytest.raises(DocumentsError, match=words) as error:
        list_sources([tmp_path / "docs"])
    assert str(tmp_path / "docs") in str(error.value)
    assert "\n" not in str(error.value)


RST = """\
RFC: 7
Title: The Tea Protocol
Author: Ada One,
        Bob Two
Status: Final

Abstract
========

Tea is hot.

Details
=======

Cups
----

A cup holds 250 ml.
"""


def test_a_header_becomes_fields_and_the_first_part(tmp_path: Path) -> None:
    write(tmp_path, "rfc-0007.rst", RST)
    document = read(tmp_path, "rfc-0007")
    assert document.title == "The Tea Protocol"
    assert document.fields == {"rfc": "7", "title": "The Tea Protocol", "author": "Ada One, Bob Two", "status": "Final"}
    assert document.parts[0].heading == "The Tea Protocol"
    assert "Status: Final" in document.parts[0].text


def test_parts_follow_the_headings_of_restructured_text(tmp_path: Path) -> None:
    write(tmp_path, "rfc-0007.rst", RST)
    assert [(part.number, part.heading, part.text.strip()) for part in read(tmp_path, "rfc-0007").parts[1:]] == [
        (2, "Abstract", "Tea is hot."),
        (3, "Details > Cups", "A cup holds 250 ml."),
    ]


def test_parts_follow_the_headings_of_markdown_but_not_those_in_code(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "# Tea\n\nHot.\n\n## Cups ##\n\n```\n# no heading\n```\n\nOld style\n---------\n\nWords.\n")
    document = read(tmp_path, "a")
    assert document.title == "Tea"
    assert [part.heading for part in document.parts] == ["Tea", "Cups", "Old style"]


def test_front_matter_and_fields_below_the_title_are_read(tmp_path: Path) -> None:
    write(tmp_path, "front.md", '---\ntitle: "Travel"\nsuperseded_by: travel-2\ntags:\n  - a\n  - b\n---\n\nWords.\n')
    write(tmp_path, "below.md", "# Travel\n\nStatus: Final\nVersion: 3\n\nWords.\n")
    write(tmp_path, "prose.md", "# Travel\n\nNote: this is prose.\n")
    assert read(tmp_path, "front").fields == {"title": "Travel", "superseded-by": "travel-2", "tags": "a, b"}
    assert read(tmp_path, "below").fields == {"status": "Final", "version": "3"}
    assert read(tmp_path, "below").title == "Travel"
    assert read(tmp_path, "prose").fields == {}


def test_html_is_read_without_its_scripts(tmp_path: Path) -> None:
    page = "<html><head><title>Tea &amp; Co</title><meta name='status' content='Final'><style>p{}</style></head><body><h1>Tea</h1><p>Hot\n  water.</p>"
    write(tmp_path, "page.html", page + "<script>alert(1)</script><h2>Cups</h2><ul><li>one<li>two</ul></body>")
    document = read(tmp_path, "page")
    assert (document.title, document.fields) == ("Tea & Co", {"status": "Final"})
    text = "\n".join(part.text for part in document.parts)
    assert "Hot water." in text
    assert "alert" not in text
    assert document.parts[-1].heading.endswith("Cups")


def test_a_long_section_is_cut_into_parts_and_nothing_is_lost(tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {number} " + "word " * 80 for number in range(40)] + ["x" * 3 * PART_CHARS_MAX]
    write(tmp_path, "long.txt", "\n\n".join(paragraphs))
    parts = read(tmp_path, "long").parts
    assert all(len(part.text) <= PART_CHARS_MAX for part in parts)
    assert "".join("".join(part.text.split()) for part in parts) == "".join("".join(paragraphs).split())


def test_a_file_without_text_is_no_document(tmp_path: Path) -> None:
    write(tmp_path, "empty.md", " \n")
    with pytest.raises(ValueError, match="no text"):
        read(tmp_path, "empty")


def test_a_broken_pdf_is_refused_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, "a.pdf", b"%PDF-1.4 nothing")
    with pytest.raises(ValueError, match=r"not a readable PDF|refold\[pdf\]"):
        read(tmp_path, "a")


def test_the_text_of_a_pdf_is_read_by_pages(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    write(tmp_path, "a.pdf", pdf("The toll is 4 crowns."))
    assert [(part.heading, part.text) for part in read(tmp_path, "a").parts] == [("Page 1", "The toll is 4 crowns.")]


def pdf(text: str) -> bytes:
    """A PDF of one page, by hand."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    content, offsets = b"%PDF-1.4\n", list[int]()
    for number, body in enumerate(objects, 1):
        offsets.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return content + b"xref\n0 6\n0000000000 65535 f \n%strailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (table, len(content))


@pytest.mark.parametrize("piece", ["<a ", "<a/", "<div\n", "<a b='", '<a x="', "<!--", "<?", "<", "&#1", "<p", "</"], ids=repr)
def test_hostile_html_costs_no_more_than_its_length(piece):
    # given a page with half a million of what would keep a careless parser busy for hours
    page = "<html><title>Growth</title><p>The growth was 5 %.</p>" + piece * (500_000 // len(piece))
    # when it is read, then what stands before it is found; a parser of quadratic time would not come back
    title, _, sections = html_sections(page)
    assert title == "Growth"
    assert "The growth was 5 %." in sections[0][1]
