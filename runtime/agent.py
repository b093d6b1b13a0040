"""`Agent`: a model, tools, budgets, policy and validators, and the verbs that run them over a store."""

import asyncio
import copy
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final, Literal

from refold.events import facts as f, settings as recorded
from refold.events.words import RunId
from refold.fsm.guards import ASK_USER
from refold.projections.excerpts import READ_RESULT
from refold.projections.revisions import ENGINE
from refold.projections.run import Run
from refold.runtime import consults as c, models, ports as p
from refold.runtime.driver import Driver, RunExists
from refold.runtime.forking import Asked, Elsewhere, changes_between, fork, setup_at
from refold.runtime.journal import Journal, continuation
from refold.runtime.live import START, Feed, Shown as Shown, Streamed as Streamed
from refold.runtime.performing import Cast
from refold.runtime.redaction import Redaction, Redactor
from refold.runtime.rereading import offered, reader
from refold.runtime.result import Result, result_of
from refold.runtime.selecting import Relevant
from refold.runtime.settings import Budgets, Context, Policy, recorded_as
from refold.runtime.store import NotAsked, Store
from refold.runtime.text import visible, whole
from refold.runtime.tools import Tool, tool
from refold.runtime.values import stored


class OtherAgent(ValueError):
    """The agent that is to drive a run on is not the one that it was begun with."""


class UnknownPrice(ValueError):
    """A budget of money for a model whose price is in no list: it could not be kept."""


class NotEnded(ValueError):
    """Only a run that has ended can be continued."""


_GOING_ON: Final[set["asyncio.Task[Result]"]] = set()
"""Runs whose listeners may have gone; the event loop itself holds its tasks only weakly."""


class Agent:
    """What runs. Raises ValueError when it is made of things that do not fit: two tools of one name, one named like a built-in.

    `model` is a SPEC, anything with a `stream` method, or None for the default; `name` is what another process finds it by.
    `redactors` take a text and give it without its secrets; they see whatever is written or shown of a model, a tool or an error.
    """

    def __init__(
        self,
        model: str | p.Model | None = None,
        instructions: str = "",
        tools: Sequence[Tool] = (),
        budgets: Budgets | None = None,
        policy: Policy | None = None,
        validators: Sequence[c.Validator] = (),
        context: Context | None = None,
        *,
        name: str = "agent",
        ask_user: bool = True,
        answer_schema: dict[str, Any] | None = None,
        documents: Sequence[str] = (),
        redactors: Sequence[Redactor] = (),
        context_builder: c.Builder | None = None,
    ) -> None:
        if plain := next((made for made in tools if not isinstance(made, Tool)), None):
            raise ValueError(f"{getattr(plain, '__name__', plain)!r} is no tool: put @tool above the function, or make a Tool(...) of it")
        self.model, self.instructions, self.name = model, instructions, name
        self.tools = {made.name: made for made in tools}
        self.budgets, self.policy, self.context = budgets or Budgets(), policy or Policy(), context or Context()
        self.context_builder = context_builder
        self.validators = [(getattr(validator, "__name__", type(validator).__name__), validator) for validator in validators]
        self.ask_user, self.documents = ask_user, tuple(documents)
        self.redactors = tuple(redactors)
        self.answer_schema = answer_schema or next((schema for v in validators if (schema := getattr(v, "answer_schema", None)) is not None), None)
        if len(self.tools) != len(tools):
            names = [made.name for made in tools]
            twice = next(name for n, name in enumerate(names) if name in names[:n])
            raise ValueError(f"two tools are named {twice!r}; a call could not tell them apart")
        if ASK_USER in self.tools and ask_user:
            raise ValueError(f"a tool is named {ASK_USER!r}, which is built in; give it another name, or make the agent with ask_user=False")
        if READ_RESULT in self.tools:
            raise ValueError(f"a tool is named {READ_RESULT!r}, which is built in; give it another name")

    # -- verbs

    async def run(self, goal: str, *, store: Store, run_id: str | None = None, heard: Callable[[Shown], None] | None = None, own_loop: bool = False) -> Result:
        """Begin a run for a goal and drive it until it ends or waits for a human. Raises ValueError for an empty goal or an id that is none, RunExists, StoreUnavailable.

        `heard` is called with every part and every committed record; with `own_loop` the event loop serves this run alone.
        """
        goal = checked_goal(goal)
        ids = p.RandomIds()
        journal = Journal(store.log, checked_id(run_id) if run_id is not None else ids.run_id(), own_loop=own_loop)
        model = self._model(None)
        begin = f.RunStarted(goal=goal, setup=self.declared(seed=ids.seed(), model=model))
        return await self._driven(store, journal, model, heard, begin=(begin,))

    async def resume(self, run_id: str, *, store: Store, heard: Callable[[Shown], None] | None = None, own_loop: bool = False) -> Result:
        """Drive an unfinished run on; one that has ended, or waits with nothing new, is given back as it is.

        Approvals that are open or unused and were asked for under another rule or schema than today's are void. Raises UnknownRun, OtherAgent, OtherHistory, StoreUnavailable.
        """
        journal = Journal(store.log, run_id, own_loop=own_loop).load()
        if journal.run.state == "done" or (_still_waits(journal.run) and not self.consults(journal.run.begun).void(journal.run)):
            return result_of(store, journal.run)
        self._check_tools(journal.run)
        journal.check_past()
        return await self._driven(store, journal, self._model(journal.run.begun), heard, setup=journal.run.begun)

    async def continue_run(
        self, run_id: str, message: str = "", *, store: Store, new_id: str | None = None, heard: Callable[[Shown], None] | None = None, own_loop: bool = False
    ) -> Result:
        """Begin a run whose history is that of an ended one, with fresh budgets; `message` is what the user says now. Raises NotEnded, ValueError, RunExists, OtherHistory."""
        parent = Journal(store.log, run_id).load().run
        if parent.state != "done":
            raise NotEnded(f"run {run_id} has not ended ({parent.status}): resume it, or say something to it")
        ids = p.RandomIds()
        journal = Journal(store.log, checked_id(new_id) if new_id is not None else ids.run_id(), own_loop=own_loop)
        model = self._model(parent.begun)
        said = checked_goal(message) if message else ""
        begin = continuation(store.log, parent, said, self.declared(seed=ids.seed(), model=model))
        return await self._driven(store, journal, model, heard, begin=(begin,))

    def continue_run_sync(self, run_id: str, message: str = "", *, store: Store, new_id: str | None = None) -> Result:
        """`continue_run` for scripts. Raises RuntimeError inside a running event loop."""
        return _outside_loop("continue_run", lambda: self.continue_run(run_id, message, store=store, new_id=new_id, own_loop=True))

    def run_sync(self, goal: str, *, store: Store, run_id: str | None = None) -> Result:
        """`run` for scripts. Raises RuntimeError inside a running event loop."""
        return _outside_loop("run", lambda: self.run(goal, store=store, run_id=run_id, own_loop=True))

    def resume_sync(self, run_id: str, *, store: Store) -> Result:
        """`resume` for scripts. Raises RuntimeError inside a running event loop."""
        return _outside_loop("resume", lambda: self.resume(run_id, store=store, own_loop=True))

    async def fork(
        self,
        run_id: str,
        at: int,
        *,
        store: Store,
        message: str = "",
        edits: Mapping[str, Any] | None = None,
        allow_repeat: bool = False,
        with_model: bool | None = None,
        new_id: str | None = None,
        heard: Callable[[Shown], None] | None = None,
        own_loop: bool = False,
    ) -> Result:
        """Begin a run whose history is that of another up to `at`, or to the last place before where that rests, and drive it as this agent is: its model, settings and tools.

        `edits` are other results by call id, `message` is what the user says to it; side effects that the parent performed later are asked for, unless `allow_repeat`.
        A script begins anew where the model is another one, or an object (`with_model`). Raises UnknownRun, NoFork, RunExists, OtherHistory, StoreUnavailable.
        """
        child = RunId(checked_id(new_id) if new_id is not None else p.RandomIds().run_id())
        before = setup_at(store.log, run_id, at)
        model = self._model(before)
        anew = not (self.model is None or isinstance(self.model, str)) if with_model is None else with_model
        changes = changes_between(before, self.declared(model=model), with_model=anew)
        asked = Asked(changes, {call: stored(result) for call, result in (edits or {}).items()}, checked_goal(message) if message else "", allow_repeat)
        fork(store.log, run_id, at, child, asked)
        journal = Journal(store.log, child, own_loop=own_loop).load()
        return await self._driven(store, journal, model, heard, setup=journal.run.begun)

    def fork_sync(
        self,
        run_id: str,
        at: int,
        *,
        store: Store,
        message: str = "",
        edits: Mapping[str, Any] | None = None,
        allow_repeat: bool = False,
        new_id: str | None = None,
    ) -> Result:
        """`fork` for scripts. Raises RuntimeError inside a running event loop."""
        return _outside_loop(
            "fork",
            lambda: self.fork(run_id, at, store=store, message=message, edits=edits, allow_repeat=allow_repeat, new_id=new_id, own_loop=True),
        )

    async def stream(
        self, goal: str, *, store: Store, run_id: str | None = None, on_disconnect: Literal["continue", "cancel"] = "continue"
    ) -> AsyncGenerator[Streamed, None]:
        """Run, giving live parts and committed records as they come, in one order, until the run ends or waits for a human. Raises what `run` raises.

        A reader that is slow misses parts, never records, and is told so (`Dropped`); `store.watch` goes on behind any cursor. Where whoever listens goes away,
        the run goes on without (`continue`) or is cancelled (`cancel`): at once where the generator is closed (`contextlib.aclosing`), else when it is collected.
        """
        given = checked_id(run_id) if run_id is not None else p.RandomIds().run_id()
        if run_id is not None and store.log.head(given) is not None:
            raise RunExists(f"there is already a run {given}; choose another id, or watch it")
        feed, cursor = Feed(), START
        running = asyncio.get_running_loop().create_task(self.run(goal, store=store, run_id=given, heard=feed))
        _GOING_ON.add(running)
        running.add_done_callback(_GOING_ON.discard)
        running.add_done_callback(lambda _: feed.close())
        try:
            while (batch := await feed.more(store.log, given, cursor)) is not None:
                for streamed in batch:
                    cursor = streamed.cursor
                    yield streamed
            await running
        finally:
            if on_disconnect == "cancel" and (not running.done() or running.cancelled()) and await feed.more(store.log, given, START) is not None:
                await _ended(store, given, running)

    async def _driven(
        self,
        store: Store,
        journal: Journal,
        model: p.Model,
        heard: Callable[[Shown], None] | None,
        *,
        begin: Sequence[f.Input] = (),
        setup: f.Setup | None = None,
    ) -> Result:
        """Drive a run, for everybody who reads along."""
        with store.live.on_air(journal.run, heard) as feed:
            journal.heard = feed
            cast = self._cast(model, feed, setup)
            if journal.run.forked_from is not None:
                cast = replace(cast, consults=cast.consults.of_fork(Elsewhere(store.log, journal.id).performed))
            driver = Driver(journal, cast)
            await driver.drive(begin)
        return result_of(store, journal.run, lost=driver.lost)

    # -- what a run is begun and driven with

    def _check_tools(self, run: Run) -> None:
        """An agent that lacks a tool of the run would fail calls that were allowed: it is the wrong one."""
        missing = [made.name for made in run.begun.tools if made.name not in (ASK_USER, READ_RESULT) and made.name not in self.tools]
        if missing:
            raise OtherAgent(
                f"run {run.id} was begun by the agent {run.begun.agent!r}, and this one, {self.name!r}, lacks its tools {', '.join(missing)}: name the right agent"
            )

    def consults(self, setup: f.Setup | None = None) -> c.Consults:
        """The agent's code as a driver asks it; a run that began under other settings keeps its own."""
        policy = setup.policy if setup is not None else self.policy
        asks = tool(effect="read", name=ASK_USER)(c.ask_user) if (setup.ask_user if setup is not None else self.ask_user) else None
        context = setup.context if setup is not None else self.context
        return c.Consults(
            tools={**self.tools, READ_RESULT: reader()} if offered(context) else self.tools,
            validators=self.validators,
            policy_retries=policy.max_tool_retries,
            tool_timeout_s=policy.tool_timeout_s,
            asks=asks,
            redaction=Redaction.of(self.redactors),
            context_builder=self._builder(setup, context),
        )

    def _builder(self, setup: f.Setup | None, context: recorded.Context | None) -> tuple[str, c.Builder | None]:
        """Who chooses what requests show: the run's own builder, where this agent has it, else ours, where the run has one."""
        own = _named(self.context_builder)
        name = setup.context_builder if setup is not None else own
        if name:
            return name, self.context_builder if name == own else None
        most = context.relevant_turns if context is not None else None
        return ("relevant", Relevant(most)) if most is not None else ("", None)

    def _cast(self, model: p.Model, heard: Callable[[Shown], None], setup: f.Setup | None = None) -> Cast:
        switched = self._switched(model, setup) if setup is not None else None
        return Cast(model=model, consults=self.consults(setup), clock=p.SystemClock(), show=heard, switched=switched)

    def _switched(self, model: p.Model, setup: f.Setup) -> f.ModelSetup | None:
        """The model that a run goes on with, where it is another one or elsewhere. Raises UnknownPrice."""
        spec, base_url, model_settings = _described(model)
        if (spec, base_url, model_settings) == (setup.model, setup.base_url, setup.model_settings):
            return None
        price = self._price(model, setup.budgets, setup.policy)
        return f.ModelSetup(model=spec, base_url=base_url, model_settings=model_settings, price=price)

    def _model(self, setup: f.Setup | None) -> p.Model:
        """The agent's own model; else the one the run was begun with; else the default."""
        if self.model is not None and not isinstance(self.model, str):
            return self.model
        if self.model is not None:
            return models.resolve(self.model)
        if setup is not None and setup.model:
            return models.resolve(setup.model, base_url=setup.base_url or None, settings=setup.model_settings)
        return models.resolve(models.DEFAULT)

    def declared(self, *, seed: str = "", model: p.Model | None = None) -> f.Setup:
        """What a run is begun with: everything that its decisions depend on. Raises UnknownPrice."""
        consults = self.consults()
        tools, asks = list(consults.tools.values()), consults.asks
        spec, base_url, model_settings = _described(model)
        return f.Setup(
            engine=ENGINE,
            seed=seed,
            agent=whole(self.name),
            model=spec,
            base_url=base_url,
            model_settings=model_settings,
            instructions=whole(self.instructions),
            tools=tuple(_recorded(made) for made in (tools if asks is None else [*tools, asks])),
            ask_user=self.ask_user,
            documents=tuple(whole(document) for document in self.documents),
            validators=tuple(whole(name) for name, _ in self.validators),
            answer_schema=self.answer_schema,
            price=self._price(model, self.budgets, self.policy),
            budgets=recorded_as(self.budgets, recorded.Budgets),
            policy=recorded_as(self.policy, recorded.Policy),
            context=recorded_as(self.context, recorded.Context),
            context_builder=_named(self.context_builder),
        )

    def declared_in(self, context: recorded.Context | None) -> f.Setup:
        """What a run in this context would be begun with: the tools that come with a context are those of the run, whatever the agent's own is."""
        made = copy.copy(self)
        made.context = Context(**asdict(context)) if context is not None else Context()
        return made.declared()

    def _price(self, model: p.Model | None, budgets: recorded.Budgets, policy: recorded.Policy) -> f.Price | None:
        """The price of a model that has one. Raises UnknownPrice where none is known and the budget of money leans on it."""
        if not getattr(model, "priced", False):
            return None
        from refold.runtime.prices import price_of  # the list is large, and most runs of tests and scripts need none

        spec, base_url, _ = _described(model)
        price = price_of(spec, base_url)
        if price is None and budgets.max_cost_usd is not None and policy.unknown_price != "free":
            raise UnknownPrice(
                f"the price of {spec} is not known, so the budget of {budgets.max_cost_usd} USD could not be kept: "
                "count it as free with --set policy.unknown_price=free, or lift the budget with --set budgets.max_cost_usd=none"
            )
        return price


def _described(model: p.Model | None) -> tuple[str, str, dict[str, Any]]:
    """A model as it is recorded: its SPEC, its address, its settings."""
    return str(getattr(model, "spec", type(model).__name__)), str(getattr(model, "base_url", "") or ""), dict(getattr(model, "settings", {}) or {})


def _named(builder: c.Builder | None) -> str:
    return whole(getattr(builder, "__name__", type(builder).__name__)) if builder is not None else ""


def _recorded(made: Tool) -> f.ToolSetup:
    approval: Literal["never", "always", "predicate"] = made.approval if isinstance(made.approval, str) else "predicate"
    return f.ToolSetup(
        name=made.name,
        description=whole(made.description),
        schema=made.schema,
        effect=made.effect,
        approval=approval,
        timeout_s=made.timeout_s,
        retries=made.retries,
        concurrent=made.concurrent,
        repeatable=made.repeatable,
    )


def _still_waits(run: Run) -> bool:
    """Whether only a human can move the run, and no approval has expired meanwhile."""
    now = p.SystemClock().now_us()
    return run.waits and not any(call.phase == "waiting" and call.expires_at is not None and call.expires_at <= now for call in run.calls)


async def _ended(store: Store, run_id: str, running: "asyncio.Task[Result]") -> None:
    """End a run to which nobody listens any more."""
    reason = "nobody listens any more"

    def if_parked(task: "asyncio.Task[Result]") -> None:
        if task.cancelled():  # the loop ends, and would leave the run as it is: there is no later moment
            with suppress(NotAsked):
                store.cancel_sync(run_id, reason)

    if running.done():
        if_parked(running)
        return
    running.add_done_callback(if_parked)
    if not running.cancelling():
        with suppress(NotAsked):  # it has just ended by itself
            await store.cancel(run_id, reason)
    await asyncio.wait({running})


def _outside_loop(verb: str, make: Callable[[], Any]) -> Result:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        result: Result = asyncio.run(make())
        return result
    raise RuntimeError(f"{verb}_sync would block the event loop that is running: await agent.{verb}(...) instead")


def checked_goal(goal: str) -> str:
    """A goal that says something. Raises ValueError."""
    if not visible(goal):
        raise ValueError("the goal is empty: say what the agent is to do")
    return whole(goal)


def checked_id(run_id: str) -> str:
    """A run id as the log takes it. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", run_id) or run_id == "last":
        raise ValueError(f"{run_id!r} is no run id: up to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit, and not 'last'")
    return run_id
