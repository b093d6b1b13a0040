"""The chain of a request's digest: what goes on proves that nothing before it changed, and what does not is named."""

from refold.events import facts as f
from refold.events.chain import NOTHING, digest_of
from refold.events.settings import Budgets
from refold.projections.breaks import between, breaks
from refold.projections.growing import Entries
from refold.projections.messages import encode, tokens_of
from refold.projections.prefix import chained, start
from refold.projections.run import replace
from refold.projections.timeline import timeline
from refold.testing.trajectory import Act, Trajectory

LOOK, SOUTH = (Act("look", f'{{"at":"{at}"}}') for at in ("north", "south"))
TOOLS = (f.ToolSetup(name="look", description="Looks.", schema={"type": "object"}, effect="read"),)


def requests(run: Trajectory) -> list[f.ModelRequested]:
    return [record.fact for record in run.records if isinstance(record.fact, f.ModelRequested)]


def two_turns(**arguments: object) -> Trajectory:
    run = Trajectory().start(instructions="Be brief.", tools=TOOLS, **arguments)  # type: ignore[arg-type]
    run.calls(LOOK)
    run.succeed("t1.1", "seen")
    return run


def test_the_digest_is_a_chain_over_instructions_tools_and_messages() -> None:
    # given the parts of a request, each by its own digest
    run = two_turns()
    parts = [digest_of(encode("Be brief.")), digest_of(encode([("look", "Looks.", {"type": "object"})]))]
    parts += [entry.digest for entry in run.run.entries]
    # then the digest is what they are linked to, and the first request's is on the way there
    assert requests(run)[1].digest == chained(NOTHING, parts)
    assert requests(run)[0].digest == chained(NOTHING, parts[:3])
    assert start(run.run.begun, bare=False) == chained(NOTHING, parts[:2])


def test_a_run_whose_requests_go_on_has_no_breaks() -> None:
    run = two_turns()
    run.model_fails()
    run.attach()
    run.say("and?")
    run.answer("Yes.", complaints=("say why",))
    run.answer("Because.")
    assert breaks(run.records) == []
    assert not any(span.broke for span in timeline(run.records))


def test_a_request_without_tools_breaks_the_prefix_and_says_so() -> None:
    for engine in (1, 2):
        # given a run whose last turn is for the answer
        run = two_turns(budgets=Budgets(max_turns=2), engine=engine)
        assert requests(run)[1].wrap_up
        # then that request is named, with what it costs to read all of it again
        (broken,) = breaks(run.records)
        position = next(record.position for record in run.records if record.fact is requests(run)[1])
        assert (broken.position, broken.number, broken.part) == (position, 2, "tools")
        assert broken.because == "it offers no tools, since it is for an answer alone"
        assert 0 < broken.tokens < requests(run)[0].estimated_input_tokens
        assert [span.broke for span in timeline(run.records) if span.kind == "request"] == ["", "tools"]


def test_once_broken_it_goes_on_from_there() -> None:
    # given a run that is out of calls, and is asked for an answer twice
    run = two_turns(budgets=Budgets(max_tool_calls=1))
    run.calls(SOUTH)
    run.answer("Yes.", complaints=("say why",))
    assert [request.wrap_up for request in requests(run)] == [False, False, True, True]
    assert [broken.number for broken in breaks(run.records)] == [3]


def test_a_message_that_is_another_is_named_by_its_place() -> None:
    # given a request, and one before it that showed something else as the result of its call
    run = two_turns()
    last = run.run
    run.calls(SOUTH)
    run.succeed("t2.1", "seen")
    entries = list(last.entries)
    entries[2] = replace(entries[2], digest=digest_of(b"something else"))
    prefix = chained(start(last.begun, bare=False), (entry.digest for entry in entries))
    other = replace(last, entries=Entries(entries), prefix=prefix)
    # then that is where they part, and what the other showed up to there is not read again
    assert between(last, run.run) is None
    broken = between(other, run.run)
    assert broken is not None
    assert (broken.number, broken.part, broken.because) == (3, "message 3", "its message 3 changed")
    assert abs(broken.tokens - tokens_of(entries[2].size)) <= 1
