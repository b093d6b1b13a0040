"""What took how long, read off the log."""

from pathlib import Path

import pytest

from refold import open_store
from refold.events.codec import Record
from refold.projections.timeline import timeline
from refold.runtime.transfer import import_file, parse

LOGS = Path(__file__).parents[1] / "logs" / "v1"


def records(name: str) -> list[Record]:
    store = open_store("memory:")
    return list(store.read(import_file(store, parse((LOGS / f"{name}.jsonl").read_bytes(), name))))


def test_every_request_and_every_attempt_of_a_call_is_a_span() -> None:
    # given a run whose call failed once and worked the second time
    spans = timeline(records("retries"))
    # then there is a span for each request and for each attempt, with its measured time and how it ended
    assert [(span.kind, span.name, span.attempt, span.outcome) for span in spans] == [
        ("request", "request 1", 1, "tool_calls_requested"),
        ("call", "put", 1, "tool_failed"),
        ("call", "put", 2, "tool_succeeded"),
        ("request", "request 2", 1, "final_proposed"),
    ]
    assert all(span.duration_us is not None and span.duration_us >= 0 for span in spans)


def test_waiting_for_a_human_is_a_span_of_its_own_and_stays_open_while_it_lasts() -> None:
    spans = timeline(records("waiting"))
    assert [(span.kind, span.ended) for span in spans if span.kind == "wait"] == [("wait", None), ("wait", None)]
    assert [span.outcome for span in timeline(records("question")) if span.kind == "wait"] == ["clarification_received"]


def test_what_a_vanished_driver_left_is_marked_as_such() -> None:
    dead = [span for span in timeline(records("recovered")) if span.kind == "dead"]
    assert [span.outcome for span in dead] == ["driver_attached"] * 3


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_spans_of_every_kind_of_run_are_in_order_and_end_after_they_begin(path: Path) -> None:
    spans = timeline(records(path.stem))
    assert [span.position for span in spans] == sorted(span.position for span in spans)
    assert all(span.ended is None or span.ended >= span.began for span in spans)
