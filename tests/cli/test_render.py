"""What people read in a terminal: texts of any language fit its width, and nothing of them is lost."""

from hypothesis import example, given, strategies as st

from refold.runtime.cli.render import visible, width_of, wrapped

ALPHABET = "ab- 温度気候変動é́ 🌡️ שלום"


@example("aaaaaaaaa候", 10, "")  # its last character begins in the last column
@given(st.text(ALPHABET, max_size=200), st.integers(10, 60), st.sampled_from(["", "  ", "> "]))
def test_a_text_of_any_language_is_wrapped_to_the_columns_that_there_are(text: str, columns: int, margin: str) -> None:
    lines = wrapped(visible(text), columns, margin, margin)
    assert all(width_of(line) <= columns for line in lines)
    assert "".join("".join(line.removeprefix(margin).split()) for line in lines) == "".join(text.split())


def test_wide_characters_fill_a_line_at_half_as_many() -> None:
    assert wrapped("気候変動" * 4, 16) == ["気候変動" * 2, "気候変動" * 2]
    assert wrapped("plain words stay as they were", 12) == ["plain words", "stay as they", "were"]
