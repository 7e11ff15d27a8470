"""Spans of a sequence that met a preemption, the loss of its core, and a hand-over: in a process that makes spans."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from support.clocks.waiting import LIMIT

SCRIPT = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from headrace_engine.engine.results.spans import record_spans
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.result_types import FinishReason

kept, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
given = json.loads(sys.argv[1])
times = SequenceTimes(10.0, 7, **given["times"])
for event, time in given["events"]:
    times.happens(event, time)
record_spans(times, FinishReason[given["reason"]], 1, 4)
print(json.dumps([
    {"name": span.name, "began": span.start_time, "ended": span.end_time, "failed": not span.status.is_ok
     and span.status.is_unset is False, "trace": f"{span.context.trace_id:032x}",
     "events": [[event.name, event.timestamp] for event in span.events], "attributes": dict(span.attributes)}
    for span in kept.get_finished_spans()
]))
"""
TRACE = "0af7651916cd43dd8448eb211c80319c"


def spans(reason: str, events: list[tuple[str, float]], **times: Any) -> dict[str, dict[str, Any]]:
    given = json.dumps({"reason": reason, "events": events, "times": times})
    done = subprocess.run([sys.executable, "-c", SCRIPT, given], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return {span["name"]: span for span in json.loads(done.stdout)}


def test_events_are_in_the_span_of_their_time() -> None:
    events = [("hand-over", 10.0), ("preemption", 12.5), ("recovery", 14.0)]
    times = {"scheduled": 11.0, "first_token": 12.0, "finished": 14.0, "preemptions": 1, "handovers": 1}
    found = spans("EOS", events, trace=f"00-{TRACE}-b7ad6b7169203331-01", **times)
    assert found["engine.queue"]["events"] == [["hand-over", 10_000_000_000]]
    assert found["engine.prefill"]["events"] == []
    assert [name for name, _ in found["engine.decode"]["events"]] == ["preemption", "recovery"]
    assert (found["engine.request"]["began"], found["engine.request"]["ended"]) == (10_000_000_000, 14_000_000_000)
    assert found["engine.request"]["attributes"]["headrace.preemptions"] == 1
    assert {span["trace"] for span in found.values()} == {TRACE}


def test_one_that_never_ran_has_waited_alone() -> None:
    found = spans("STOPPED", [], finished=11.0)
    assert set(found) == {"engine.request", "engine.queue"}
    assert found["engine.queue"]["ended"] == 11_000_000_000


@pytest.mark.parametrize(("reason", "failed"), [("ERROR", True), ("DEADLINE", False)])
def test_an_error_is_one(reason: str, failed: bool) -> None:
    assert spans(reason, [], finished=11.0)["engine.request"]["failed"] is failed
