"""Approvals and questions: each is asked once, decided by itself in any order and any process, and allows exactly what was shown."""

import threading
from collections import Counter
from typing import Any

import msgspec
import pytest

from refold import Agent, Budgets, Policy, Store, Tool, show, tool
from refold.events import facts as f
from refold.runtime import ports as p
from refold.runtime.ownership import DrivenElsewhere
from refold.runtime.store import Ambiguous, NotAsked

HOUR_US = 3_600_000_000


class Outbox:
    """What was sent, and a tool that sends only what somebody allows."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    @property
    def send(self) -> Tool:
        @tool(approval="always", name="send")
        def send(to: str, body: str = "hello") -> str:
            """Sends."""
            self.sent.append(f"{body} to {to}")
            return f"sent to {to}"

        return send


def sends(*names: str) -> list[dict[str, Any]]:
    return [{"name": "send", "arguments": {"to": name}} for name in names]


def waiting(store: Store, run_id: str) -> list[tuple[str, Any]]:
    """What waits for a human: the call and its arguments."""
    return [(asked["call_id"], asked["arguments"]) for asked in show(store, run_id)["pending"]]


@pytest.fixture
def clock(monkeypatch):
    """The time of the day, in a test's hands: `clock[0]` microseconds."""
    now = [1_800_000_000_000_000]
    monkeypatch.setattr(p.SystemClock, "now_us", lambda self: now[0])
    return now


def test_B031_all_open_approvals_are_shown_at_once_and_decided_in_three_processes(stage, results_of, tmp_path):
    # given three calls that need approval and one that needs none, in one reply
    box, looked = Outbox(), []

    @tool(effect="read")
    def look() -> str:
        """Looks."""
        looked.append(1)
        return "seen"

    turns = [{"calls": [*sends("ann", "bob"), {"name": "look"}, *sends("cat")]}, {"text": "done"}]
    url = f"sqlite:///{tmp_path}/log.db"
    store = stage.another_store(url)
    result = stage.agent(turns, [box.send, look]).run_sync("Do it.", store=store, run_id="r")
    # when the run pauses
    assert (result.status, looked, box.sent) == ("waiting_for_user", [1], [])
    # then all three are shown in full, and the free call has run
    assert waiting(store, "r") == [(call, {"to": to, "body": "hello"}) for call, to in (("t1.1", "ann"), ("t1.2", "bob"), ("t1.4", "cat"))]
    # and decided one by one, each in a process of its own, they lead to one more request
    for left, call in enumerate(("t1.1", "t1.2", "t1.4"), 1):
        store, agent = stage.another_store(url), stage.agent(turns, [box.send, look])
        store.approve_sync("r", call)
        result = agent.resume_sync("r", store=store)
        assert len(box.sent) == left
        assert result.status == ("waiting_for_user" if left < 3 else "completed")
    assert looked == [1]
    assert [len(model.requests) for model in stage.models] == [1, 0, 0, 1]
    assert [kind for kind, _ in results_of(result).values()] == ["success"] * 4


def test_B033_a_decision_is_in_the_log_and_not_in_what_the_host_made_anew(stage, results_of):
    # given a run that waits, and a host that makes everything anew: agent, model, tool
    box, other = Outbox(), Outbox()
    turns = [{"calls": sends("ann")}, {"text": "done"}]
    stage.play(turns, [box.send], run_id="r")
    stage.store.approve_sync("r", who="ann@example")
    # when the run is resumed with those
    result = stage.agent(turns, [other.send]).resume_sync("r", store=stage.store)
    # then it is not asked again, runs once, and the log says who allowed what and when
    assert (result.status, box.sent, other.sent) == ("completed", [], ["hello to ann"])
    asked = [record for record in result.records if record.type == "approval_requested"]
    (granted,) = [record for record in result.records if record.type == "approval_granted"]
    assert len(asked) == 1
    assert granted.data["who"] == "ann@example"
    assert granted.data["digest"] == asked[0].data["digest"]
    assert granted.at >= asked[0].at


@pytest.mark.parametrize("changed", ["rule", "schema", "raising rule"])
@pytest.mark.parametrize("decided", ["approved", "waiting"])
def test_B035_an_approval_under_another_rule_than_todays_is_asked_again(stage, results_of, changed, decided):
    # given a call that was allowed, and an agent that is stricter when the run is resumed
    ran: list[str] = []

    def large(arguments: dict[str, Any]) -> bool:
        return bool(arguments["amount"] > 10)

    def any_amount(arguments: dict[str, Any]) -> bool:
        if changed == "raising rule":
            raise PermissionError("closed")
        return True

    @tool(approval=large, name="pay")
    def pay(amount: int) -> str:
        """Pays."""
        ran.append("before")
        return "paid"

    @tool(approval=any_amount, name="pay")
    def pay_by_rule(amount: int) -> str:
        """Pays."""
        ran.append("after")
        return "paid"

    @tool(approval=large, name="pay")
    def pay_in(amount: int, currency: str = "EUR") -> str:
        """Pays."""
        ran.append("after")
        return "paid"

    call = {"calls": [{"name": "pay", "arguments": {"amount": 99}}]}
    stage.play([call], [pay], run_id="r")
    old = waiting(stage.store, "r")[0][0]
    if decided == "approved":
        stage.store.approve_sync("r")
    # when it is resumed
    today = pay_in if changed == "schema" else pay_by_rule
    result = stage.agent([call, call, {"text": "done"}], [today]).resume_sync("r", store=stage.store)
    # then the old approval is void, and the log says why; nothing has run
    assert not ran
    (void,) = [record for record in result.records if record.type == "approval_denied"]
    assert void.call == old
    assert "asked for, again" in void.data["reason"]
    assert results_of(result)[old][0] == "approval_denied"
    with pytest.raises(NotAsked):
        stage.store.approve_sync("r", old)
    if changed == "raising rule":
        return
    # and what the model asks for again is a request of its own, which leads to one act
    assert result.status == "waiting_for_user"
    assert [call for call, _ in waiting(stage.store, "r")] == ["t2.1"]
    stage.store.approve_sync("r")
    assert stage.agent([call, call, {"text": "done"}], [today]).resume_sync("r", store=stage.store).status == "completed"
    assert ran == ["after"]


def test_B035_an_approval_that_todays_rule_would_not_ask_for_stands(stage):
    # given a call that was allowed, and an agent whose rule asks for less when the run is resumed
    box = Outbox()

    @tool(name="send")
    def send_freely(to: str, body: str = "hello") -> str:
        """Sends."""
        box.sent.append(to)
        return "sent"

    turns = [{"calls": sends("ann")}, {"text": "done"}]
    stage.play(turns, [box.send], run_id="r")
    stage.store.approve_sync("r")
    # when
    result = stage.agent(turns, [send_freely]).resume_sync("r", store=stage.store)
    # then it runs, once
    assert (result.status, box.sent) == ("completed", ["ann"])


def test_B036_what_is_shown_is_what_runs(stage, results_of):
    # given arguments that are written loosely, with a default left out
    box = Outbox()
    stage.play([{"calls": [{"name": "send", "arguments": ' {"to" : "ann"} '}]}, {"text": "done"}], [box.send], run_id="r")
    # when somebody is asked
    (asked,) = show(stage.store, "r")["pending"]
    # then they see what will run, and its digest is the one that is granted and started
    assert asked["arguments"] == {"to": "ann", "body": "hello"}
    stage.store.approve_sync("r", digest=asked["digest"])
    agent = stage.agent([{"text": "never"}, {"text": "done"}], [box.send])
    result = agent.resume_sync("r", store=stage.store)
    assert box.sent == ["hello to ann"]
    facts = [record.fact for record in result.records]
    (checked,) = [fact.checks[0] for fact in facts if isinstance(fact, f.CallsChecked)]
    (granted,) = [fact for fact in facts if isinstance(fact, f.ApprovalGranted)]
    assert granted.digest == checked.digest == asked["digest"]
    assert msgspec.json.decode(checked.arguments) == asked["arguments"]


def test_B036_an_approval_is_for_these_arguments_and_for_once(stage):
    # given a call that was allowed
    box = Outbox()
    turns = [{"calls": sends("ann")}, {"calls": sends("bob")}, {"calls": sends("ann")}, {"text": "done"}]
    options = {"policy": Policy(max_duplicate_actions=2)}
    stage.play(turns, [box.send], run_id="r", **options)
    digests = []
    # when the tool is called with others, and with the same once more
    for _ in range(3):
        (asked,) = show(stage.store, "r")["pending"]
        digests.append(asked["digest"])
        with pytest.raises(NotAsked):
            stage.store.approve_sync("r", digest="what was shown to somebody else")
        stage.store.approve_sync("r", digest=asked["digest"])
        result = stage.agent(turns, [box.send], **options).resume_sync("r", store=stage.store)
    # then each is asked for, and a digest stands for the arguments
    assert result.status == "completed"
    assert box.sent == ["hello to ann", "hello to bob", "hello to ann"]
    assert digests[0] == digests[2] != digests[1]


def test_B036_arguments_that_a_human_edits_are_checked_again_and_both_are_in_the_log(stage, results_of):
    # given a call that waits
    box = Outbox()
    turns = [{"calls": sends("ann")}, {"text": "done"}]
    agent = stage.agent(turns, [box.send])
    agent.run_sync("Do it.", store=stage.store, run_id="r")
    # when a human approves it with other arguments: with wrong ones, then with right ones
    with pytest.raises(ValueError, match="too"):
        stage.store.approve_sync("r", arguments='{"too": "bob"}', consults=agent.consults())
    stage.store.approve_sync("r", arguments='{"to": "bob"}', consults=agent.consults(), who="eve")
    result = agent.resume_sync("r", store=stage.store)
    # then those run, the model is told, and the log has both and who it was
    assert box.sent == ["hello to bob"]
    assert results_of(result)["t1.1"][1]["arguments_changed_by"] == "eve"
    facts = [record.fact for record in result.records]
    (proposed,) = [fact.calls[0] for fact in facts if isinstance(fact, f.ToolCallsRequested)]
    (edited,) = [fact for fact in facts if isinstance(fact, f.CallSuperseded)]
    assert msgspec.json.decode(proposed.arguments_text) == {"to": "ann"}
    assert msgspec.json.decode(edited.check.arguments) == {"to": "bob", "body": "hello"}
    assert edited.check.digest != next(fact.digest for fact in facts if isinstance(fact, f.ApprovalRequested))


@pytest.mark.parametrize("second", ["approve", "deny"])
def test_B038_two_approvals_of_a_turn_are_each_asked_once(stage, results_of, tmp_path, second):
    # given two calls that need approval
    box = Outbox()
    turns = [{"calls": sends("ann", "bob")}, {"text": "done"}]
    url = f"sqlite:///{tmp_path}/log.db"
    stage.agent(turns, [box.send]).run_sync("Do it.", store=stage.another_store(url), run_id="r")
    # when they are decided in two processes
    for call in ("t1.1", "t1.2"):
        store, agent = stage.another_store(url), stage.agent(turns, [box.send])
        if call == "t1.1" or second == "approve":
            store.approve_sync("r", call)
        else:
            store.deny_sync("r", call, reason="not bob")
        result = agent.resume_sync("r", store=store)
    # then each was asked once, what was allowed ran once, and one more request was made
    assert result.status == "completed"
    assert [record.call for record in result.records if record.type == "approval_requested"] == ["t1.1", "t1.2"]
    assert box.sent == ["hello to ann", "hello to bob"][: 2 if second == "approve" else 1]
    assert [kind for kind, _ in results_of(result).values()] == ["success", "success" if second == "approve" else "approval_denied"]
    assert sum(len(model.requests) for model in stage.models) == 2


def test_B039_decisions_may_come_in_any_order(stage, results_of):
    # given three calls that wait
    box = Outbox()
    turns = [{"calls": sends("ann", "bob", "cat")}, {"text": "done"}]
    stage.play(turns, [box.send], run_id="r")
    store = stage.store
    counts = [len(waiting(store, "r"))]
    with pytest.raises(Ambiguous):
        store.approve_sync("r")
    # when the third is refused first, then the first allowed, then the second
    store.deny_sync("r", "t1.3", reason="not cat")
    counts.append(len(waiting(store, "r")))
    store.approve_sync("r", "t1.1")
    counts.append(len(waiting(store, "r")))
    store.approve_sync("r", "t1.2")
    counts.append(len(waiting(store, "r")))
    result = stage.agent(turns, [box.send]).resume_sync("r", store=store)
    # then each decision met its own call
    assert counts == [3, 2, 1, 0]
    assert box.sent == ["hello to ann", "hello to bob"]
    results = results_of(result)
    assert [kind for kind, _ in results.values()] == ["success", "success", "approval_denied"]
    assert results["t1.3"][1]["message"] == "not cat"


@pytest.mark.parametrize("kind", ["approval", "question"])
def test_B041_a_cancelled_run_waits_for_nobody(stage, results_of, kind):
    # given a run that waits for a human
    box = Outbox()
    calls = sends("ann") if kind == "approval" else [{"name": "ask_user", "arguments": {"question": "Which?"}}]
    agent = stage.agent([{"calls": calls}, {"text": "never said"}], [box.send])
    agent.run_sync("Do it.", store=stage.store, run_id="r")
    # when it is cancelled, and nobody drives it
    stage.store.cancel_sync("r", "enough")
    # then it is over, nothing is open, the call has its result, and a late word is refused
    shown = show(stage.store, "r")
    assert (shown["status"], shown["pending"], shown["driver"]) == ("cancelled", [], None)
    assert shown["observations"][-1]["error_type"] == "cancelled"
    for late in (
        lambda: stage.store.approve_sync("r", "t1.1"),
        lambda: stage.store.answer_sync("r", "this one"),
        lambda: stage.store.deny_sync("r", reason="no"),
    ):
        with pytest.raises(NotAsked):
            late()
    # and the conversation goes on
    agent.model = stage.scripted([{"text": "Hello."}])
    result = agent.continue_run_sync("r", "Are you there?", store=stage.store)
    assert (result.status, box.sent) == ("completed", [])


def test_B043_an_approval_that_nobody_gives_in_time_is_refused_once(stage, results_of, clock):
    # given an approval that holds for an hour
    box = Outbox()
    turns = [{"calls": sends("ann")}, {"text": "done"}]
    options = {"policy": Policy(approval_expiry_s=3600)}
    stage.play(turns, [box.send], run_id="r", **options)
    # when more than an hour passes, and two workers look at the run at the same moment
    clock[0] += HOUR_US + HOUR_US // 60
    with pytest.raises(NotAsked, match="expired"):
        stage.store.approve_sync("r")
    agents = [stage.agent(turns, [box.send], **options) for _ in range(2)]
    start, statuses = threading.Barrier(2), []

    def look(agent: Agent) -> None:
        start.wait()
        try:
            statuses.append(agent.resume_sync("r", store=stage.store).status)
        except DrivenElsewhere:
            statuses.append("elsewhere")

    workers = [threading.Thread(target=look, args=(agent,)) for agent in agents]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    # then it is refused, once, with the reason, and nothing ran
    assert Counter(statuses) in ({"completed": 1, "elsewhere": 1}, {"completed": 2}), statuses
    records = list(stage.store.read("r"))
    assert [record.type for record in records].count("approval_expired") == 1
    assert sum(len(model.requests) for model in stage.models) == 2
    assert box.sent == []
    told = next(message for message in show(stage.store, "r")["messages"] if message["role"] == "tool")
    assert (told["kind"], told["content"]["message"]) == ("approval_denied", "nobody approved this call in time")
    # and the late word too
    clock[0] += HOUR_US // 60
    with pytest.raises(NotAsked):
        stage.store.approve_sync("r", "t1.1")


def test_B043_an_approval_without_an_end_can_be_given_after_a_month(stage, clock):
    # given an approval without an end, in a run that may take a minute of active time
    box = Outbox()
    turns = [{"calls": sends("ann")}, {"text": "done"}]
    options = {"budgets": Budgets(timeout_s=60)}
    stage.play(turns, [box.send], run_id="r", **options)
    # when a month passes, in which nobody holds the run and resuming it changes nothing
    clock[0] += 30 * 24 * HOUR_US
    assert stage.store.log.holder("r") is None
    before = stage.store.log.head("r")
    assert stage.agent(turns, [box.send], **options).resume_sync("r", store=stage.store).status == "waiting_for_user"
    assert stage.store.log.head("r") == before
    # then it can be given, and the wait counts for nothing
    stage.store.approve_sync("r")
    result = stage.agent(turns, [box.send], **options).resume_sync("r", store=stage.store)
    assert (result.status, box.sent) == ("completed", ["hello to ann"])
    assert result.run.spent.active_us < 60_000_000
