"""Schema and version change: what code of today makes of a run that other code began, and that it never guesses."""

import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import Agent, Budgets, Policy, ScriptedModel, Store, Tool, audit, fold, open_store, replay, show, tool
from refold.events import codec, facts as f
from refold.events.chain import close
from refold.events.codec import FACTS, UPCASTERS, Record, Unreadable, read
from refold.events.storage import Row
from refold.projections.revisions import UnsupportedEngine
from refold.runtime.agent import OtherAgent
from refold.runtime.cli import exits
from refold.runtime.cli.main import perform

GOLDEN = Path(__file__).parents[1] / "logs"


# -- B050


def pay(ran: list[Any], name: str = "pay", **options: Any) -> Tool:
    """A tool that was found at run time: it comes with a schema, and no code of ours declares it."""
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"], "additionalProperties": False}
    return Tool(name=name, description="Pays.", schema=schema, handler=lambda arguments, ctx: ran.append(arguments) or "paid", approval="always", **options)


def pay_for_a_reason(ran: list[Any]) -> Tool:
    @tool(approval="always", name="pay")
    def pay(amount: int, why: str) -> str:
        """Pays."""
        ran.append((amount, why))
        return "paid"

    return pay


PAYS = [{"calls": [{"name": "pay", "arguments": {"amount": 9}}]}, {"text": "done"}]


@pytest.mark.parametrize("today", [[], ["pay_out"]], ids=["not registered", "renamed"])
def test_B050_a_tool_that_is_missing_at_resume_is_said_before_anything_is_appended(stage, today):
    # given a call that was approved, and a process that does not know its tool
    ran: list[Any] = []
    stage.play(PAYS, [pay(ran)], run_id="r")
    stage.store.approve_sync("r")
    approved = stage.store.log.read("r")
    # when the run is resumed
    with pytest.raises(OtherAgent, match="lacks its tools pay: name the right agent"):
        stage.agent(PAYS, [pay(ran, name) for name in today]).resume_sync("r", store=stage.store)
    # then nothing was executed or appended, the approval included, and whoever has the tool goes on with it
    assert not ran
    assert stage.store.log.read("r") == approved
    assert approved[-1].type == "approval_granted"
    assert stage.agent(PAYS, [pay(ran)]).resume_sync("r", store=stage.store).answer == "done"
    assert ran == [{"amount": 9}]


def test_B050_arguments_that_no_longer_fit_are_told_to_the_model_and_nothing_runs(stage, results_of):
    # given a call that was approved, and a tool that has another required parameter since
    ran: list[Any] = []
    stage.play(PAYS, [pay(ran)], run_id="r")
    stage.store.approve_sync("r")
    # when the run is resumed
    result = stage.agent(PAYS, [pay_for_a_reason(ran)]).resume_sync("r", store=stage.store)
    # then the model is told why, nothing was executed, and the approval stays in the log
    kind, content = results_of(result)["t1.1"]
    assert (result.status, ran) == ("completed", [])
    assert kind == "approval_denied"
    assert "the schema of pay changed after a human was asked" in content["message"]
    assert [record.type for record in result.records if record.call and "approval" in record.type] == [
        "approval_requested",
        "approval_granted",
        "approval_denied",
    ]


@pytest.mark.parametrize(
    ("today", "kind", "words"),
    [
        ("not registered", "approval_denied", "there is no tool 'pay'; the tools are: "),
        ("renamed", "approval_denied", "there is no tool 'pay'; the tools are: pay_out"),
        ("other parameters", "approval_denied", "the schema of pay changed"),
    ],
)
def test_B050_a_fork_that_inherits_such_a_call_is_told_the_same(stage, results_of, today, kind, words):
    # given a run whose call waits for approval, and a fork of it by an agent whose tool is missing or another
    ran: list[Any] = []
    waiting = stage.play(PAYS, [pay(ran)], run_id="r")
    tools = {"not registered": [], "renamed": [pay(ran, "pay_out")], "other parameters": [pay_for_a_reason(ran)]}[today]
    other = stage.agent([{"text": "done"}], tools)
    result = other.fork_sync("r", waiting.position, store=stage.store, new_id="fork")
    # then nobody is asked, nothing is executed, and the model is told
    assert (result.status, ran) == ("completed", [])
    told, content = results_of(result)["t1.1"]
    assert told == kind
    assert words in content["message"]


SHOP = '''
from refold import Agent, tool

@tool(approval="always"{name})
def pay(amount: int{more}) -> str:
    """Pays."""
    open("paid", "a").write("x")
    return "paid"

agent = Agent(tools=[{tools}])
'''


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"tools": ""}, exits.USAGE, "lacks its tools pay"),
        ({"name": ', name="pay_out"'}, exits.USAGE, "lacks its tools pay"),
        ({"more": ", why: str"}, exits.COMPLETED, ""),
    ],
    ids=["not registered", "renamed", "other parameters"],
)
def test_B050_the_command_line_says_it_in_a_line(tmp_path, monkeypatch, capsys, changed, code, words):
    # given a call that was approved on the command line, and an agent that changed since
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "script.json"
    script.write_text(json.dumps(PAYS))
    plain = {"name": "", "more": "", "tools": "pay"}
    for name, shop in (("shop_before", plain), ("shop_after", plain | changed)):
        (tmp_path / f"{name}.py").write_text(SHOP.format(**shop), encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    words_of_run = ["run", "Do it.", "--agent", "shop_before:agent", "--model", f"script:{script}", "--run-id", "r", "--no-input", "--quiet"]
    assert perform(words_of_run) == exits.WAITING
    assert perform(["approve", "r"]) == 0
    capsys.readouterr()
    # when it is resumed
    assert perform(["resume", "r", "--agent", "shop_after:agent", "--quiet"]) == code
    # then that is one line, or an answer, and nothing was paid
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == bool(words)
    assert not (tmp_path / "paid").exists()
    # and the approval is in the log
    assert perform(["log", "r", "--types", "approval_granted"]) == 0
    assert "t1.1" in capsys.readouterr().out


# -- B156


@tool(effect="read")
def look(at: int) -> str:
    """Looks."""
    return f"saw {at}"


ASKS = [
    {"calls": [{"name": "look", "arguments": {"at": 1}}, {"name": "ask_user", "arguments": {"question": "Which?"}}]},
    {"text": "done"},
]


class SaidTwo(f.UserSaid, frozen=True, kw_only=True):
    """`user_said` as a later version might have it: `who` was renamed, and nobody speaks without a channel."""

    VERSION = 2
    speaker: str
    channel: str


def as_version_two(monkeypatch: pytest.MonkeyPatch, fact: type[f.Fact]) -> None:
    """A refold in which this fact has come to be another."""
    monkeypatch.setitem(codec.FACTS, fact.TAG, fact)
    monkeypatch.setitem(codec._decoders, fact.TAG, msgspec.json.Decoder(fact))


@pytest.fixture
def said(stage) -> Store:
    """The store with a run that waits for an answer, and that somebody has said something to."""
    stage.play(ASKS, [look], run_id="r")
    stage.store.say_sync("r", "Be quick.", who="ann")
    return stage.store


def test_B156_a_known_migration_is_applied_in_memory_and_the_log_is_as_it_was(stage, said, monkeypatch):
    # given a run with a record of version 1, and code that knows version 2 and how to come to it
    stored = said.log.read("r")
    as_version_two(monkeypatch, SaidTwo)
    monkeypatch.setitem(UPCASTERS, ("user_said", 1), lambda data: {"text": data["text"], "who": "", "speaker": data["who"], "channel": "none"})
    # when it is loaded, replayed, resumed and replayed again
    (record,) = [record for record in said.read("r") if record.type == "user_said"]
    assert record.fact == SaidTwo(text="Be quick.", who="", speaker="ann", channel="none")
    assert replay(said, "r").divergence is None
    said.answer_sync("r", "This one.")
    agent = stage.agent(ASKS, [look])
    result = agent.resume_sync("r", store=said)
    # then it goes on as ever, and not one byte of what was there has changed
    assert result.answer == "done"
    assert agent.model.requests[0].messages[-1].text == "Be quick."
    assert said.log.read("r")[: len(stored)] == stored
    assert (record.v, record.stored) == (1, stored[record.position - 1].state)
    assert replay(said, "r").divergence is None
    assert audit(said, "r").ok


Change = Callable[[dict[str, Any]], object]


def rewritten(records: Sequence[Record], position: int, change: Change) -> list[Row]:
    """The log as code of another version would have written it: one record otherwise, and the chain over it whole."""
    rows, before = [], codec.Digest("")
    for record in records:
        line = json.loads(record.stored)
        del line["digest"]
        if record.position == position:
            change(line)
        stored, before = close(msgspec.json.encode(line), before)
        rows.append(Row(record.position, line.get("type", record.type), stored))
    return rows


OTHERS: dict[str, tuple[str, Change, list[str]]] = {
    "a type that is not known": ("user_said", lambda line: line.update(type="user_spoke"), ["user_spoke at position"]),
    "a newer version": ("user_said", lambda line: line.update(v=2), ["user_said at position", "version 2", "newer refold"]),
    "an older version": ("user_said", lambda line: line.update(v=0), ["user_said at position", "no upcaster leads from user_said version 0 to 1"]),
    "a field that is not there": ("user_said", lambda line: line["data"].pop("text"), ["user_said at position", "version 1", "`text`"]),
    "nothing where a text was": ("user_said", lambda line: line["data"].update(text=None), ["user_said at position", "version 1", "`null`"]),
    "a value that is no object any more": ("calls_checked", lambda line: line["data"].update(checks={}), ["calls_checked at position", "version 1"]),
    "a word that is not known": (
        "calls_checked",
        lambda line: line["data"]["checks"][0].update(effect="harmless"),
        ["calls_checked at position", "version 1", "'harmless'"],
    ),
    "a state that is not known": ("driver_attached", lambda line: line.update(to="napping"), ["driver_attached at position", "'napping'"]),
}


def elsewhere(url: str, rows: Sequence[Row], payloads: Any) -> Store:
    store = open_store(url)
    store.log.append("r", 0, rows, payloads, create=True)
    return store


@pytest.mark.parametrize("case", OTHERS)
def test_B156_what_cannot_be_decoded_is_an_error_with_its_place_and_never_nothing(said, tmp_path, monkeypatch, capsys, case):
    # given a log with one record that code of another version wrote
    tag, change, words = OTHERS[case]
    records = list(said.read("r"))
    position = next(record.position for record in records if record.type == tag)
    rows = rewritten(records, position, change)
    store = elsewhere(f"sqlite:///{tmp_path}/log.db", rows, said.log.payloads("r"))
    words = [*words, f"at position {position}: "]
    # when it is loaded, resumed and spoken to
    agent = Agent(ScriptedModel(ASKS), tools=[look])
    for verb in (lambda: fold(store.read("r")), lambda: show(store, "r"), lambda: agent.resume_sync("r", store=store), lambda: store.answer_sync("r", "This.")):
        with pytest.raises(Unreadable) as error:
            verb()
        # then it is an error that says what is where
        assert [word for word in words if word not in str(error.value)] == []
    assert not agent.model.requests
    # and the proofs name the place
    divergence, judged = replay(store, "r").divergence, audit(store, "r")
    assert divergence is not None
    assert divergence.position == judged.chain.broken_at == position
    assert [row.state for row in store.log.read("r")] == [row.state for row in rows]
    store.close()
    # and on the command line it is one line, too; only who does not fold shows the record as it is, and the run can be seen up to there
    monkeypatch.setenv("REFOLD_STORE", f"sqlite:///{tmp_path}/log.db")
    (tmp_path / "script.json").write_text(json.dumps(ASKS))

    def typed(*line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = perform(line)
        return code, *capsys.readouterr()

    for command in (["show", "r"], ["resume", "r", "--model", f"script:{tmp_path}/script.json"], ["answer", "r", "This."]):
        code, out, err = typed(*command)
        assert (code, out, len(err.splitlines())) == (exits.FAILED, "", 1)
        assert [word for word in words if word not in err] == []
    assert typed("log", "r", "--json")[1].encode() == b"".join(row.state + b"\n" for row in rows)
    lines = typed("log", "r")[1].splitlines()
    assert len(lines) == len(rows)
    assert lines[position - 1].split()[:3] == [str(position), "cannot", "be"]
    assert typed("show", "r", "--at", str(position - 1))[0] == 0
    assert [run["status"] for run in json.loads(typed("runs", "--json")[1])] == ["damaged"]
    assert typed("replay", "r")[0] == typed("audit", "r")[0] == typed("doctor")[0] == exits.FOUND


def test_B156_a_field_that_is_not_known_stays_in_the_log_and_the_proofs_name_it(said, tmp_path):
    """A fact grows by fields with a default and keeps its version, so a field that is not known is one that a newer refold added: whoever reads passes it over,
    the stored bytes keep it, and whoever proves says that these bytes are not what today's code would have written. A field that is taken away, or comes to mean
    something else, is a new version of its fact, and that is an error."""
    # given a record with a field more
    records = list(said.read("r"))
    position = next(record.position for record in records if record.type == "user_said")
    store = elsewhere("memory:", rewritten(records, position, lambda line: line["data"].update(mood="good")), said.log.payloads("r"))
    # when it is loaded
    record = list(store.read("r"))[position - 1]
    # then what is known is whole, and what is not is in the bytes
    assert record.fact == records[position - 1].fact
    assert b'"mood":"good"' in record.stored
    # and it is named
    divergence = replay(store, "r").divergence
    assert divergence is not None
    assert (divergence.position, divergence.field, divergence.cause_class) == (position, "data.mood", "upcaster")
    assert not audit(store, "r").ok


def test_B156_rules_that_are_not_known_are_not_guessed(said):
    # given a run that was begun under the rules of a version to come
    rows = rewritten(list(said.read("r")), 1, lambda line: line["data"]["setup"].update(engine=99))
    store = elsewhere("memory:", rows, said.log.payloads("r"))
    store.answer_sync("r", "This one.")  # a word from outside leans on no rules: it is kept for whoever knows them
    stored = store.log.read("r")
    agent = Agent(ScriptedModel(ASKS), tools=[look])
    # when it is replayed, resumed or forked
    for verb in (lambda: replay(store, "r"), lambda: agent.resume_sync("r", store=store), lambda: agent.fork_sync("r", len(stored), store=store)):
        with pytest.raises(UnsupportedEngine, match="engine 99"):
            verb()
    # then that is said, and nothing is asked or appended; it can be looked at
    assert not agent.model.requests
    assert (store.runs(), store.log.read("r")) == (["r"], stored)
    assert show(store, "r")["goal"] == "Do it."


# -- B177


class Value(msgspec.Struct, tag="value", frozen=True):
    """One of two results that a later version might tell apart."""

    content: Any


class Page(msgspec.Struct, tag="page", frozen=True):
    """The other one."""

    content: Any
    next: int


class SucceededTwo(f.ToolSucceeded, frozen=True, kw_only=True):
    """`tool_succeeded` as a later version might have it: its outcome is a union with a tag."""

    VERSION = 2
    outcome: Value | Page


def test_B177_old_records_without_the_tag_are_mapped_by_their_version_or_refused(stage, said, monkeypatch):
    # given a run with a result that was stored before results had a tag
    stored = said.log.read("r")
    as_version_two(monkeypatch, SucceededTwo)
    # when it is loaded by code that was not told what the old form is
    with pytest.raises(Unreadable, match="no upcaster leads from tool_succeeded version 1 to 2"):
        fold(said.read("r"))
    # then it is an error; and so is a mapping that forgets the tag
    monkeypatch.setitem(UPCASTERS, ("tool_succeeded", 1), lambda data: data | {"outcome": {"content": data["result"]}})
    with pytest.raises(Unreadable, match=r"tool_succeeded at position .* missing required field `type`"):
        fold(said.read("r"))
    # and with one that names it every old record is read as that, and nothing is written
    monkeypatch.setitem(UPCASTERS, ("tool_succeeded", 1), lambda data: data | {"outcome": {"type": "value", "content": data["result"]}})
    (record,) = [record for record in said.read("r") if record.type == "tool_succeeded"]
    assert (record.fact.outcome, record.v) == (Value("saw 1"), 1)
    assert replay(said, "r").divergence is None
    assert said.log.read("r") == stored


@pytest.mark.parametrize("name", ["type", "v"])
def test_B177_a_record_that_does_not_say_what_it_is_is_none(said, name):
    """No version of refold wrote such a record: every golden log says of every record what it is."""
    # given a record without its type, or without its version
    records = list(said.read("r"))
    position = next(record.position for record in records if record.type == "tool_succeeded")
    store = elsewhere("memory:", rewritten(records, position, lambda line: line.pop(name)), said.log.payloads("r"))
    # when it is loaded
    with pytest.raises(Unreadable, match=f"tool_succeeded at position {position}: not a record: Object missing required field `{name}`"):
        fold(store.read("r"))
    # then its fields are not enough to be taken for anything
    divergence = replay(store, "r").divergence
    assert divergence is not None
    assert divergence.position == position
    lines = [json.loads(line) for path in GOLDEN.glob("**/*.jsonl") for line in path.read_bytes().splitlines()]
    assert lines
    assert all(FACTS[line["type"]].VERSION >= line["v"] >= 1 for line in lines if "payload" not in line)


ALIKE = [
    ("tool_calls_requested", "final_proposed"),
    ("tool_rejected", "tool_closed"),
    ("tool_calls_accepted", "tool_results_injected"),
    ("run_stopped", "run_failed"),
]
"""Facts that have the same fields."""


def test_B177_all_facts_with_the_same_fields_are_looked_at():
    fields = defaultdict(set)
    for tag, fact in FACTS.items():
        fields[tuple((field.name, str(field.type)) for field in msgspec.structs.fields(fact))].add(tag)
    assert sorted(map(sorted, (tags for tags in fields.values() if len(tags) > 1))) == sorted(map(sorted, ALIKE))


@pytest.mark.parametrize(("tag", "other"), ALIKE)
@pytest.mark.parametrize("chained", [True, False], ids=["with a whole chain", "in place"])
def test_B177_fields_never_decide_what_a_record_is(stage, tag, other, chained):
    # given a run with a record whose fields would do for another fact
    turn = {"calls": [{"name": "look", "arguments": {"at": 1}}, {"name": "nothing"}]}
    stage.play([turn], [look], run_id="r", budgets=Budgets(max_turns=1), policy=Policy(wrap_up=False))
    records = list(stage.store.read("r"))
    record = next(record for record in records if record.type == tag)
    # when it is read, then it is what it says
    assert type(read(record.stored, dict[Any, Any]().__getitem__).fact) is FACTS[tag]
    # and where it says something else, by the hand of somebody who also made the chain whole or not, it is that, and out of place
    rows = rewritten(records, record.position, lambda line: line.update(type=other))
    if not chained:
        rows = [row if row.position == record.position else Row(r.position, r.type, r.stored) for row, r in zip(rows, records, strict=True)]
    store = elsewhere("memory:", rows, {})
    assert type(list(store.read("r"))[record.position - 1].fact) is FACTS[other]
    divergence, judged = replay(store, "r").divergence, audit(store, "r")
    assert divergence is not None
    assert divergence.position == record.position
    assert not judged.ok
    # and a row that says otherwise than its record is found, too
    odd = elsewhere("memory:", [Row(r.position, other if r is record else r.type, r.stored) for r in records], {})
    assert audit(odd, "r").chain.broken_at == record.position
