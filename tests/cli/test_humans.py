"""`answer`, `approve`, `deny`, `resolve`, `say`, `cancel`: a word from outside."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from refold import open_store
from refold.runtime.cli import exits

DONE = {"text": "All done."}
TWO = {"calls": [{"name": "send", "arguments": {"to": "ann"}}, {"name": "send", "arguments": {"to": "bob"}}]}
ASK = {"calls": [{"name": "ask_user", "arguments": {"question": "Which year?"}}]}
PAY = {"calls": [{"name": "pay", "arguments": {"amount": 5}}]}


def test_an_approval_prints_exactly_what_is_approved(shell):
    shell.run(TWO, DONE)
    done = shell("approve", "one", "t1.2")
    assert done.code == exits.COMPLETED
    assert "t1.2" in done.out
    assert done.out.index("to: bob") < done.out.index("body: hello")  # what was filled in comes last
    assert "refold resume one" in done.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "refold resume one --agent MODULE:NAME"),
        (("--agent", "crew:agent"), "refold resume one --agent crew:agent"),
        (("--store", "sqlite:///.refold/log.db", "--agent", "crew:agent"), "refold resume one --agent crew:agent"),
    ],
    ids=["not named", "named", "in the usual store"],
)
def test_the_line_to_type_next_names_the_agent_where_the_record_does_not_lead_to_its_code(shell, words, line):
    shell.run(ASK, DONE)
    assert shell("answer", "one", "2023", *words).err == f"drive it on with: {line}\n"
    # and what needs a person can be typed as well
    assert line.replace("crew:agent", "MODULE:NAME") in shell("doctor").out


@pytest.mark.parametrize("where", ["the project's table", "the environment"])
def test_the_line_to_type_next_is_short_where_the_code_is_found(shell, monkeypatch, where):
    shell.run(ASK, DONE)
    if where == "the environment":
        monkeypatch.setenv("REFOLD_AGENT", "crew:agent")
    else:
        shell.write("refold.toml", '[tool.refold.agents]\ncrew = "crew:agent"\n')
    assert shell("answer", "one", "2023").err == "drive it on with: refold resume one\n"


def test_with_several_open_and_none_named_they_are_listed_and_nothing_happens(shell):
    shell.run(TWO, DONE)
    done = shell("approve", "one")
    assert done.code == exits.USAGE
    assert "t1.1" in done.err
    assert "t1.2" in done.err
    assert len(shell("pending", "--json").json) == 2


def test_all_are_approved_at_once_and_driven_on(shell):
    shell.run(TWO, DONE)
    done = shell("approve", "one", "--all", "--resume", "--agent", "crew:agent")
    assert (done.code, done.out) == (exits.COMPLETED, "All done.\n")


def test_all_under_a_command_that_was_given_before_is_about_those_of_then(shell):
    # given two turns that each wait for an approval
    shell.run({"calls": TWO["calls"][:1]}, {"calls": TWO["calls"][1:]}, DONE)
    shell("approve", "one", "--all", "--command-id", "K", "--resume", "--agent", "crew:agent")
    # when the first one's command comes again, or another one under its id
    again = shell("approve", "one", "--all", "--command-id", "K", "--resume", "--agent", "crew:agent")
    # then nothing is approved that nobody has seen
    assert again.code == exits.WAITING
    assert "nothing was done now" in again.err
    assert [asked["call_id"] for asked in shell("pending", "--json").json] == ["t2.1"]
    assert shell("deny", "one", "--all", "--reason", "no", "--command-id", "K/t1.1").code == exits.COMPLETED


def test_an_id_of_another_command_is_refused_at_once(shell):
    shell.run(TWO, DONE)
    shell("say", "one", "hello", "--command-id", "K")
    done = shell("cancel", "one", "--command-id", "K")
    assert done.code == exits.USAGE
    assert "K was taken at position" in done.error
    assert "(user_said)" in done.error


def test_a_run_that_waits_for_more_than_was_decided_waits_for_the_user(shell):
    shell.run(TWO, DONE)
    shell("approve", "one", "t1.1")
    assert [run["run_id"] for run in shell("runs", "--status", "waiting_for_user", "--json").json] == ["one"]
    shell("approve", "one", "t1.2")
    assert [run["status"] for run in shell("runs", "--json").json] == ["running"]


def test_an_approval_that_has_expired_is_to_be_resumed(shell):
    shell.run(TWO, DONE, words=("--set", "policy.approval_expiry_s=0.001"))
    done = shell("pending")
    assert "expired" in done.out
    assert "refold resume one" in done.out
    assert "refold approve" not in done.out
    assert "nothing was decided" in shell("approve", "one", "--all").err


def test_an_answer_may_name_its_call_in_its_place(shell):
    shell.run({"calls": [*ASK["calls"], *ASK["calls"]]}, DONE)
    assert "put several words in quotes" in shell("answer", "one", "in", "2023").error
    assert shell("answer", "one", "t1.2", "2023", "--json").json["call_id"] == "t1.2"


def test_options_that_only_a_driver_reads_are_said_to_have_done_nothing(shell):
    shell.run(TWO, DONE)
    done = shell("approve", "one", "--all", "--docs", ".", "--model", "offline", "--max-turns", "3")
    assert (done.code, "--docs, --model, --max-turns: without --resume nothing is driven" in done.err) == (exits.COMPLETED, True)


def test_a_call_is_named_in_its_place_or_by_option_but_not_as_two(shell):
    shell.run(TWO, DONE)
    assert "several calls" in shell("approve", "one", "t1.1", "--call", "t1.2").error
    assert shell("deny", "one", "--call", "t1.1", "--reason", "no").code == exits.COMPLETED
    assert shell("deny", "one", "t1.2", "--reason", "no", "--json").json["decision"] == "denied"


def test_a_digest_insists_on_what_was_seen(shell):
    shell.run(TWO, DONE)
    assert shell("approve", "one", "t1.1", "--digest", "another").code == exits.USAGE
    seen = shell("pending", "--json").json[0]["digest"]
    assert shell("approve", "one", "t1.1", "--digest", seen).code == exits.COMPLETED


def test_a_denial_needs_a_reason(shell):
    shell.run(TWO, DONE)
    assert "--reason" in shell("deny", "one", "t1.1").error


def test_an_empty_answer_is_none(shell):
    shell.run(ASK, DONE)
    assert "empty" in shell("answer", "one", "  ").error


def test_an_answer_is_driven_on_at_once(shell):
    shell.run(ASK, DONE)
    done = shell("answer", "one", "2023", "--resume", "--agent", "crew:agent", "--json")
    assert (done.code, done.json["answer"]) == (exits.COMPLETED, "All done.")


def test_a_waiting_run_is_cancelled_at_once(shell):
    shell.run(TWO, DONE)
    done = shell("cancel", "one", "--reason", "no longer needed")
    assert done.code == exits.COMPLETED
    assert shell("show", "one", "--json").json["status"] == "cancelled"


def test_an_ended_run_takes_no_more_input(shell):
    shell.run(DONE)
    for command in (("answer", "one", "x"), ("approve", "one"), ("deny", "one", "--reason", "x"), ("say", "one", "x"), ("cancel", "one")):
        assert shell(*command).code == exits.USAGE


def test_a_message_is_taken(shell):
    shell.run(ASK, DONE)
    assert shell("say", "one", "be brief").code == exits.COMPLETED
    assert "be brief" in shell("log", "one").out


# -- commands that are given again


def test_a_command_given_again_does_nothing_and_says_where_it_was_taken(shell):
    # given
    shell.run({"calls": [*TWO["calls"], *ASK["calls"]]}, DONE)
    commands = [
        ("answer", "one", "--call", "t1.3", "2023"),
        ("approve", "one", "t1.1"),
        ("deny", "one", "t1.2", "--reason", "no"),
        ("say", "one", "be brief"),
    ]
    for number, command in enumerate(commands):
        # when
        first = shell(*command, "--command-id", f"c{number}", "--json").json
        before = shell("log", "one", "--json").out
        again = shell(*command, "--command-id", f"c{number}", "--json")
        # then
        assert again.code == exits.COMPLETED
        assert again.json == {**first, "again": True}
        assert shell("log", "one", "--json").out == before
        assert f"at position {first['position']}" in shell(*command, "--command-id", f"c{number}").out


def test_a_cancellation_given_again_is_none(shell):
    shell.run(TWO, DONE)
    first = shell("cancel", "one", "--command-id", "stop", "--json").json
    again = shell("cancel", "one", "--command-id", "stop", "--json")
    assert (again.code, again.json) == (exits.COMPLETED, {**first, "again": True})
    assert first["status"] == "cancelled"


def test_all_given_again_names_each_and_does_nothing(shell):
    shell.run(TWO, DONE)
    first = shell("approve", "one", "--all", "--command-id", "c", "--json").json
    again = shell("approve", "one", "--all", "--command-id", "c", "--json")
    assert (again.code, again.json) == (exits.COMPLETED, [{**one, "again": True} for one in first])
    assert [one["call_id"] for one in first] == ["t1.1", "t1.2"]


# -- other arguments


def test_a_call_is_approved_with_other_arguments_once_they_are_checked(shell):
    # given
    shell.run(TWO, DONE)
    # when
    shell.write("other.json", '{"to": "cat"}')
    done = shell("approve", "one", "t1.1", "--arguments", "@other.json", "--agent", "crew:agent")
    # then what is printed is what will run
    assert done.code == exits.COMPLETED
    assert done.out.index("to: cat") < done.out.index("instead of") < done.out.index("to: ann")
    shell("approve", "one", "t1.2", "--resume", "--agent", "crew:agent")
    assert [seen["data"] for seen in shell("show", "one", "--json").json["observations"]] == ["sent to cat", "sent to bob"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("t1.1", "--arguments", '{"too": "cat"}'), "cannot run with these arguments"),
        (("t1.1", "--arguments", "no json"), "cannot run with these arguments"),
        (("--all", "--arguments", "{}"), "--arguments is about one call"),
        (("--all", "--digest", "x"), "--digest is about one call"),
    ],
)
def test_other_arguments_that_do_not_fit_change_nothing(shell, words, said):
    shell.run(TWO, DONE)
    done = shell("approve", "one", *words, "--agent", "crew:agent")
    assert done.code == exits.USAGE
    assert said in done.error
    assert len(shell("pending", "--json").json) == 2


def test_without_the_agents_code_other_arguments_cannot_be_checked(shell):
    shell.run(TWO, DONE)
    assert "whose code is not known here" in shell("approve", "one", "t1.1", "--arguments", '{"to": "cat"}').error


# -- doubts


@pytest.fixture
def doubt(shell):
    shell.run(PAY, DONE, words=("--set", "policy.on_doubt=ask"))
    return shell


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("--happened", "--result", '"receipt 7"'), "success"),
        (("--happened",), "success"),
        (("--tell-model",), "in_doubt"),
    ],
)
def test_a_doubt_is_settled_with_one_word_and_driven_on(doubt, words, kind):
    done = doubt("resolve", "one", "t1.1", *words, "--resume", "--agent", "crew:agent")
    assert (done.code, done.out) == (exits.COMPLETED, "All done.\n")
    (seen,) = doubt("show", "one", "--json").json["observations"]
    assert (seen["error_type"] or "success") == kind
    assert seen["data"] == ("receipt 7" if "--result" in words else None)


def test_what_was_settled_is_printed_and_a_second_word_is_refused(doubt):
    done = doubt("resolve", "one", "--happened", "--result", '{"receipt": 7}')
    assert done.code == exits.COMPLETED
    assert "amount: 5" in done.out
    assert '{"receipt":7}' in done.out
    assert doubt("resolve", "one", "t1.1", "--tell-model").code == exits.USAGE


@pytest.mark.parametrize(
    "words", [(), ("--happened", "--tell-model"), ("--did-not-happen", "--result", "1"), ("--happened", "--result", "receipt")], ids=" ".join
)
def test_a_doubt_needs_exactly_one_word_that_can_be_read(doubt, words):
    before = doubt("log", "one", "--json").out
    assert doubt("resolve", "one", "t1.1", *words).code == exits.USAGE
    assert doubt("log", "one", "--json").out == before


def test_a_doubt_is_not_settled_by_an_approval_and_says_what_to_type(doubt):
    assert "does not wait for an approval" in doubt("approve", "one", "t1.1").error
    (asked,) = doubt("pending", "--json").json
    assert asked["kind"] == "doubt"
    for verdict in ("--happened", "--did-not-happen", "--tell-model"):
        assert f"refold resolve one t1.1 {verdict}" in doubt("pending").out


# -- who drives


@contextmanager
def driven_by(who: str) -> Iterator[None]:
    store = open_store("sqlite:///.refold/log.db", create=False)
    with store.log.hold("one", who, 30):
        yield
    store.close()


def test_a_run_that_somebody_drives_is_not_driven_again(shell):
    # given
    shell.run(ASK, DONE)
    with driven_by("ann@there:7"):
        # when, then
        done = shell("answer", "one", "2023", "--resume", "--agent", "crew:agent")
        assert done.code == exits.UNAVAILABLE
        assert "is driven by ann@there:7 since" in done.err
        done = shell("resume", "one", "--agent", "crew:agent")
        assert (done.code, "is driven by ann@there:7 since" in done.error) == (exits.UNAVAILABLE, True)
        # then its id is taken, which is no matter of who drives it
        done = shell.run(ASK, DONE)
        assert (done.code, "there is already a run one, driven by ann@there:7 since" in done.error) == (exits.USAGE, True)
    assert shell("resume", "one", "--agent", "crew:agent").code == exits.COMPLETED


def test_a_cancellation_without_waiting_is_left_to_the_driver(shell):
    shell.run(ASK, DONE)
    with driven_by("ann@there:7"):
        done = shell("cancel", "one", "--no-wait", "--json")
        assert (done.code, done.json["status"]) == (exits.COMPLETED, "running")
    assert shell("resume", "one", "--agent", "crew:agent").code == exits.CANCELLED
