"""`diff`: two runs side by side in a terminal, as JSON, from the store and from files."""

import pytest

from refold.runtime.cli import differing, exits
from refold.runtime.cli.render import Page, width_of
from refold.runtime.diff import diff
from refold.runtime.store import open_store

DONE = {"text": "All done."}
LONG = "The harbour moved 119 million tonnes in 2023, more than in any year before, which is a growth of {} percent against 2022, and nobody expected that."


def look(at):
    return {"calls": [{"name": "look", "arguments": {"at": at}}]}


def both(shell, left, right, *words):
    shell.run(*left)
    shell.run(*right, words=("--run-id", "two", *words))


def test_a_run_and_itself_are_the_same(shell):
    shell.run(look("north"), DONE)
    done = shell("diff", "one", "one")
    assert done.code == exits.COMPLETED
    assert "goal and settings, turns 1-2  the same" in done.out
    assert shell("diff", "one", "last", "--json").json["same"] is True


def test_what_differs_is_said_turn_by_turn(shell):
    both(shell, (look("north"), look("east"), DONE), (look("north"), look("west"), {"text": "Lost."}), "--max-turns", "9")
    done = shell("diff", "one", "two")
    assert done.code == exits.FOUND
    lines = done.out.splitlines()
    assert "  - settings.budgets.max_turns: 12" in lines
    assert "turn 1  the same" in lines
    assert "turn 2  the same prompt, another decision" in lines
    assert lines.index("  - calls[0].arguments.at: east") + 1 == lines.index("  + calls[0].arguments.at: west")
    assert "  + answer: Lost." in lines
    assert lines[-1].startswith("goal or settings differ; turns: 2 changed, ")


def test_json_has_every_turn_with_its_verdict_and_whole_values(shell):
    both(shell, (look("east"), look("north"), {"text": LONG.format("4.2")}), (look("south"), look("east"), look("north"), {"text": LONG.format("3.9")}))
    done = shell("diff", "one", "two", "--json")
    assert done.code == exits.FOUND
    found = done.json
    assert (found["same"], found["shared"], found["right"]["run_id"]) == (False, None, "two")
    assert [(turn["left"], turn["right"], turn["verdict"]) for turn in found["turns"]] == [
        (0, 0, "same"),
        (None, 1, "only_right"),
        (1, 2, "changed"),  # in what it used alone
        (2, 3, "changed"),
        (3, 4, "changed"),
    ]
    assert {difference["field"].split(".")[0] for turn in found["turns"][2:4] for difference in turn["differences"]} == {"usage"}
    assert {"field": "answer", "left": LONG.format("4.2"), "right": LONG.format("3.9")} in found["turns"][4]["differences"]


def test_a_run_is_compared_with_an_exported_file_of_one(shell):
    both(shell, (look("north"), DONE), (look("south"), DONE))
    shell.write("one.jsonl", shell("export", "one").out)
    assert shell("diff", "one.jsonl", "one").code == exits.COMPLETED
    done = shell("diff", "one.jsonl", "two")
    assert done.code == exits.FOUND
    assert "-  one " in done.out
    # two files need no store
    shell.write("two.jsonl", shell("export", "two").out)
    assert shell("diff", "one.jsonl", "two.jsonl", "--store", "sqlite:///nothing.db").code == exits.FOUND
    assert not (shell.folder / "nothing.db").exists()


def test_what_is_no_run_is_one_line_that_names_it(shell):
    shell.run(DONE)
    for words in (("one", "nobody"), ("nobody", "one"), ("one", "nobody.jsonl")):
        done = shell("diff", *words)
        assert done.code == exits.USAGE
        assert "nobody" in done.error
    assert "diff A B" in shell("diff", "one").error
    damaged = shell("export", "one").out.splitlines(keepends=True)
    shell.write("damaged.jsonl", "".join(damaged[:3] + damaged[4:]))
    done = shell("diff", "one", "damaged.jsonl")
    assert done.code == exits.USAGE
    assert "damaged.jsonl is damaged at position 4" in done.error


def test_how_a_run_ended_is_one_line(shell):
    both(shell, (look("north"), DONE), (look("north"), look("south"), DONE), "--max-turns", "2", "--set", "policy.wrap_up=false")
    assert "  + ended: stopped: max_turns: the limit of 2 turns" in shell("diff", "one", "two").out


def test_values_that_look_alike_are_told_apart(shell):
    both(shell, ({"text": "a b"},), ({"text": "a\n b"},))
    out = shell("diff", "one", "two").out
    assert '  - answer: "a b"' in out
    assert '  + answer: "a\\n b"' in out


def test_turns_that_only_cost_more_are_one_line(shell):
    both(
        shell,
        ({**look("north"), "cost_usd": "0.01"}, {**DONE, "cost_usd": "0.01"}),
        ({**look("north"), "cost_usd": "0.02"}, {**DONE, "cost_usd": "0.02"}),
    )
    done = shell("diff", "one", "two")
    assert done.code == exits.FOUND
    assert "turns 1-2  the same but for cost_usd" in done.out
    assert done.out.splitlines()[-1] == "turns: 2 at another price"


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_a_page_fits_its_terminal_and_shows_where_long_values_part(shell, columns):
    both(shell, (look("north"), {"text": LONG.format("4.2") * 9}), (look("n\x1b[31m" * 30), {"text": LONG.format("3.9") * 9}))
    store = open_store("sqlite:///.refold/log.db")
    page = Page()
    page.width = columns
    lines = list(differing.lines(diff(store, "one", "two"), ("one", "two"), page))
    store.close()
    assert max(map(width_of, lines)) <= columns
    assert not any("\x1b" in line for line in lines)
    text = " ".join(lines)
    assert "of 4.2 percent" in text
    assert "of 3.9 percent" in text
    assert len(lines) < 40
