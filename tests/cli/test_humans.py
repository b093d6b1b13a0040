"""`answer`, `approve`, `deny`, `say`, `cancel`: a word from outside."""

from refold.runtime.cli import exits

DONE = {"text": "All done."}
TWO = {"calls": [{"name": "send", "arguments": {"to": "ann"}}, {"name": "send", "arguments": {"to": "bob"}}]}
ASK = {"calls": [{"name": "ask_user", "arguments": {"question": "Which year?"}}]}


def test_an_approval_prints_exactly_what_is_approved(shell):
    shell.run(TWO, DONE)
    done = shell("approve", "one", "t1.2")
    assert done.code == exits.COMPLETED
    assert "t1.2" in done.out
    assert "to: bob" in done.out
    assert "body: hello" in done.out
    assert "refold resume one" in done.err


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
