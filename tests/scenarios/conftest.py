"""What the scenarios share: a stage on which agents run, and the checks that every run must stand when the curtain falls.

Each scenario is a failure that somebody reported of some agent program. Whatever it is about, its runs must also be sound: the log folds to the state that was given
back, audits and replays clean, and every request that a model received is one a strict provider takes and can be made again from the log, byte for byte.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import msgspec
import pytest

from refold import Agent, Budgets, ScriptedModel, Store, audit, fold, open_store, replay
from refold.events import facts as f
from refold.events.codec import Record
from refold.events.storage import Log, Row, Submission
from refold.fsm.machine import empty, step
from refold.projections.messages import Message
from refold.projections.transcript import Transcript, said
from refold.runtime import compacting, models
from refold.runtime.journal import inherited
from refold.runtime.ports import Part, Request
from refold.runtime.requests import request_of
from refold.runtime.result import Result
from refold.testing import strict as strictly
from refold.testing.faults import FaultyLog
from refold.testing.loopback import OUT_OF_REPLIES, Heard, Loopback, Reply
from refold.testing.replies import Api


class Meanwhile(FaultyLog):
    """A log in which something happens just before the nth batch with this type of record is appended: whoever appends then comes second."""

    def __init__(self, log: Log, batch_with: str, act: Callable[[], object], nth: int = 1) -> None:
        super().__init__(log)
        self.batch_with, self.act, self.left = batch_with, act, nth

    def _submit(self, submission: Submission) -> "Future[None]":
        if any(row.type == self.batch_with for row in submission.rows):
            self.left -= 1
            if self.left == 0:
                self.act()
        return super()._submit(submission)


class PartsModel:
    """A model that streams given parts, one list for each request; the last list is played again when there are no more."""

    spec = "parts"

    def __init__(self, turns: Sequence[Sequence[Part]]) -> None:
        self.turns = turns
        self.requests: list[Request] = []

    async def stream(self, request: Request) -> Any:
        self.requests.append(request)
        for part in self.turns[min(request.number, len(self.turns)) - 1]:
            yield part


class Stage:
    """Stores and models of one scenario. `play` runs an agent on the first store."""

    def __init__(self) -> None:
        self.stores: list[Store] = [open_store("memory:")]
        self.models: list[Any] = []

    @property
    def store(self) -> Store:
        return self.stores[0]

    def another_store(self, url: str = "memory:") -> Store:
        self.stores.append(open_store(url))
        return self.stores[-1]

    def meanwhile(self, batch_with: str, act: Callable[[], object], *, nth: int = 1) -> Store:
        """The first store, in which somebody else acts just before the driver appends its nth batch with this type of record."""
        return Store(Meanwhile(self.store.log, batch_with, act, nth), "memory:")

    def scripted(self, turns: Sequence[dict[str, Any]]) -> ScriptedModel:
        self.models.append(ScriptedModel(turns))
        return self.models[-1]

    def parts(self, *turns: Sequence[Part]) -> PartsModel:
        self.models.append(PartsModel(turns))
        return self.models[-1]

    def agent(self, turns: Sequence[dict[str, Any]], tools: Sequence[Any] = (), **options: Any) -> Agent:
        return Agent(model=self.scripted(turns), tools=tools, **options)

    def play(self, turns: Sequence[dict[str, Any]], tools: Sequence[Any] = (), *, goal: str = "Do it.", run_id: str | None = None, **options: Any) -> Result:
        return self.agent(turns, tools, **options).run_sync(goal, store=self.store, run_id=run_id)

    def requests(self) -> list[Request]:
        """What the latest model was asked."""
        return list(self.models[-1].requests)

    def cut(self, run_id: str, upto: int, url: str = "memory:") -> Store:
        """A store that holds the first records of a run: what is left when its process died there."""
        store, log = self.another_store(url), self.store.log
        rows = [Row(row.position, row.type, row.state) for row in log.scan(run_id, 0, upto)]
        store.log.append(run_id, 0, rows, log.payloads(run_id), create=True)
        return store

    def check(self) -> None:
        rebuilt: dict[bytes, Request] = {}
        for store in self.stores:
            for run_id in store.runs():
                check_run(store, run_id)
                rebuilt |= {encoded(request): request for request in rebuilt_requests(store, run_id)}
        for model in self.models:
            for request in model.requests:
                check_request(request)
                assert encoded(request) in rebuilt, f"no log gives back the request {request.number} of turn {request.turn} as it was sent"


def check_run(store: Store, run_id: str) -> None:
    """Folds, audits and replays clean."""
    records = list(store.read(run_id))
    assert fold(records).position == len(records)
    judged = audit(store, run_id)
    assert judged.ok, [(each.id, each.title, each.evidence) for each in judged.invariants if not each.ok] or (judged.chain, judged.legal)
    divergence = replay(store, run_id).divergence
    assert divergence is None, divergence


def rebuilt_requests(store: Store, run_id: str) -> list[Request]:
    """Every request of a run, made again from its log alone."""
    run, transcript, requests = empty(run_id), Transcript(), []
    for record in store.read(run_id):
        after = step(run, record)
        if isinstance(record.fact, f.RunContinued):
            transcript = inherited(store.log, record.fact)
        transcript.take(run, record.fact, after)
        run = after
        if isinstance(record.fact, f.ModelRequested):
            requests.append(request_of(run, transcript))
        if isinstance(record.fact, f.SummaryRequested) and record.fact.number is not None:
            requests.append(compacting.request_of(record.fact, run, transcript))
    return requests


encoded: Callable[[object], bytes] = msgspec.json.Encoder().encode


def check_request(request: Request) -> None:
    """What the strictest provider asks of a request: calls paired with their results directly after them and in order, arguments that are JSON objects, no blank text, every id once."""
    waiting: list[str] = []
    seen: set[str] = set()
    for message in request.messages:
        if message.role == "tool":
            assert waiting, f"the result of {message.call_id} follows no call"
            assert message.call_id == waiting.pop(0), "results stand directly behind their calls, in the same order"
            standard_json(encoded(message.content).decode())
            continue
        assert not waiting, f"{waiting} have no result before the next message"
        check_text(message)
        for call in message.calls:
            assert isinstance(standard_json(call.arguments_text), dict), f"{call.arguments_text[:80]!r} is no JSON object"
            assert call.id not in seen, f"{call.id} is used twice"
            seen.add(call.id)
            waiting.append(call.id)
    assert not waiting
    assert request.messages, "a request says something"
    assert request.messages[-1].role != "assistant", "the model is not asked to go on with its own words"


def check_text(message: Message) -> None:
    assert message.role in ("user", "assistant")
    assert message.text.strip() or (message.calls and not message.text), f"a blank {message.role} message"
    message.text.encode("utf-8")


def standard_json(text: str) -> Any:
    """JSON as every reader takes it: no NaN, no half characters."""
    text.encode("utf-8")
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def plain(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Records without what differs between two runs that went the same way: times, seeds and the process."""
    return [(r.position, r.batch, r.type, r.turn, r.call, r.source, r.target, _without(r.data, ("elapsed_us", "seed", "pid", "command_id"))) for r in records]


def _without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, names) for key, item in value.items() if key not in names}
    return [_without(item, names) for item in value] if isinstance(value, list) else value


@pytest.fixture
def stage(at_once: None) -> Iterator[Stage]:
    """A stage; when the scenario is over, every run on it must be sound."""
    set_up = Stage()
    yield set_up
    try:
        set_up.check()
    finally:
        for store in set_up.stores:
            store.close()


class Wire:
    """A provider on this machine that the real SDKs speak to, and a stage for the runs that are driven by it."""

    UNLIMITED = Budgets(max_tokens=None, max_cost_usd=None, max_tool_calls=None)
    made: ClassVar[dict[tuple[str, str], Any]] = {}
    """Models by address and name: each is made once, for a client takes a tenth of a second."""

    def __init__(self, stage: Stage, server: Loopback) -> None:
        self.stage, self.server = stage, server
        self.replies: list[Reply] = []
        self.requests: list[Heard] = []

    def heard(self, request: Heard) -> Reply:
        self.requests.append(request)
        return self.replies.pop(0) if self.replies else Reply.json({"error": {"message": OUT_OF_REPLIES}}, 400)

    def says(self, *replies: Reply | Sequence[bytes]) -> None:
        """What the server answers next: replies, or streams as the list of their events."""
        self.replies += [reply if isinstance(reply, Reply) else Reply.events(b"".join(reply)) for reply in replies]

    def model(self, api: Api, name: str = "test-model") -> Any:
        key = (api.url(self.server), f"{api.spec.partition(':')[0]}:{name}")
        if key not in self.made:
            self.made[key] = models.resolve(key[1], base_url=key[0])
        return self.made[key]

    def agent(self, api: Api, tools: Sequence[Any] = (), **options: Any) -> Agent:
        return Agent(self.model(api), tools=tools, **{"budgets": self.UNLIMITED, "ask_user": False, **options})

    def play(self, api: Api, replies: Sequence[Reply | Sequence[bytes]], tools: Sequence[Any] = (), **options: Any) -> Result:
        """A run that the server answers with these replies."""
        self.says(*replies)
        return self.agent(api, tools, **options).run_sync("Do it.", store=self.stage.store)


@pytest.fixture(scope="session")
def provider() -> Iterator[tuple[Loopback, list[Wire]]]:
    """The server, and whoever answers for it."""
    at_work: list[Wire] = []
    with Loopback(lambda request: at_work[-1].heard(request)) as server:
        yield server, at_work


@pytest.fixture
def wire(stage: Stage, provider: tuple[Loopback, list[Wire]], sdks: None, keys: dict[str, str]) -> Iterator[Wire]:
    """A provider on this machine; when the scenario is over, everything that the SDKs sent it must be what a strict one takes."""
    server, at_work = provider
    set_up = Wire(stage, server)
    at_work.append(set_up)
    yield set_up
    for heard in set_up.requests:
        strictly.check(heard.path, heard.json)


@pytest.fixture
def twin() -> Callable[[Sequence[Record]], list[tuple[Any, ...]]]:
    """Records as they compare with those of a run that went the same way."""
    return plain


@pytest.fixture
def results_of() -> Callable[[Result], dict[str, tuple[str, Any]]]:
    """Call id to kind and content, as the model was told in the end."""

    def of(result: Result) -> dict[str, tuple[str, Any]]:
        run, messages = empty(result.id), []
        for record in result.records:
            after = step(run, record)
            messages += said(run, record.fact, after)
            run = after
        return {message.call_id: (message.kind, message.content) for message in messages if message.role == "tool"}

    return of


@pytest.fixture
def strict() -> Callable[[Request], None]:
    """What the strictest provider asks of a request."""
    return check_request


@pytest.fixture
def rebuilt() -> Callable[[Store, str], list[Request]]:
    """The requests of a run, made again from its log."""
    return rebuilt_requests
