"""What one session has waiting is sent in linear time, and costs the others no turn."""

from __future__ import annotations

import ast
import sys
from collections import OrderedDict
from pathlib import Path

import headrace
import headrace_gateway
import pytest
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.outbox import Outbox
from headrace_proto.v1 import session_pb2 as wire


class TestTime:
    @pytest.mark.parametrize("count", [2_000, 16_000])
    def test_f12_what_waits_is_told_in_linear_time(self, count):
        """Calls of functions, Python's and C's, an item: as many for many as for few."""
        assert count_calls(lambda: drain(count)) / count < 120

    def test_f12_a_step_costs_no_look_at_all_that_waits(self):
        """With a crowd of items behind it, a step is weighed against a message and not against the crowd."""
        outbox = Outbox(SessionLimits(message_bytes=5_000), lambda: None)
        for channel in range(1, 50_000):
            outbox.put_error(wire.HandleError(channel=channel, handle="h" * 40))
        step = wire.StepBatch(channels=[60_000], positions=[0], counts=[1], token_ids=[7], texts=["x"], checksums=[1])
        outbox.put_rows(wire.SessionResponse(step=step))
        assert count_calls(outbox.take) < 20_000

    def test_f12_nothing_is_taken_from_the_front_of_a_list_or_dict(self):
        """A list moves all the others, a dict walks over all that left before. OrderedDict and deque do not."""
        found = [place for root in sources() for path in root.rglob("*.py") for place in front_removals(path)]
        assert found == []

    @pytest.mark.parametrize(
        ("source", "found"),
        [
            ("self.x: dict = {}\nfirst = next(iter(self.x))", 1),
            ("self.x = OrderedDict()\nfirst = next(iter(self.x))", 0),
            ("self.x = {}\nself.x.pop(next(iter(self.x.values())))", 1),
            ("waiting.pop(0)", 1),
            ("waiting.popleft()", 0),
        ],
    )
    def test_f12_that_search_finds_what_it_looks_for(self, source, found):
        assert len(list(front_lines(source))) == found

    async def test_f12_a_crowd_of_attaches_lets_others_have_their_turn(self, front, engine, join):
        """While one message of 20,000 attaches is worked through, a session beside it is answered."""
        crowd, other = await join(front), await join(front)
        message = wire.SessionRequest(attach=[crowd.attach("e1/x/unknown") for _ in range(20_000)])
        turns = []
        for live in front.gateway.sessions.live:
            watch(live.channels, turns)
        await crowd.call.write(message)
        await other.say(ping=wire.Ping(number=1))
        await other.until(lambda: other.pongs == [1])
        await crowd.until(lambda: all(crowd.of[channel].error for channel in range(1, 20_001)))
        assert turns.index("ping") < len(turns) - 1

    @pytest.fixture
    async def front(self, world, engine):
        return await world.gateway(e1=engine)


def watch(channels, turns):
    """Notes the portions that a session's messages are done in, and pings."""
    apply = channels.apply_in_portions

    def noting(request):
        if request.HasField("ping"):
            turns.append("ping")
        for _ in apply(request):
            turns.append("portion")
            yield

    channels.apply_in_portions = noting


def drain(count):
    outbox = Outbox(SessionLimits(message_bytes=5_000), lambda: None)
    for channel in range(1, count + 1):
        outbox.put_error(wire.HandleError(channel=channel, handle="h" * 40))
    while outbox.take() is not None:
        pass
    assert isinstance(outbox._channels, OrderedDict)


def count_calls(work):
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def sources():
    for package in (headrace, headrace_gateway):
        yield Path(package.__file__).parent
    yield Path(__file__).parents[4] / "engine_service/headrace_engine"


def front_removals(path):
    """Places where the first of a list or dict is taken."""
    if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
        return []
    return [f"{path.name}:{line}" for line in front_lines(path.read_text())]


def front_lines(source):
    """Lines with `x.pop(0)`, and with `next(iter(...))` of what a class keeps as anything but OrderedDict."""
    tree = ast.parse(source)
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
    kinds = {name_of(target): ast.unparse(node.value) for node in made for target in targets(node)}
    plain = {name for name, kind in kinds.items() if name.startswith("self.") and "OrderedDict(" not in kind}
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Call) else ""
        if text.endswith(".pop(0)"):
            yield node.lineno
        if text.startswith("next(iter(") and text[len("next(iter(") :].split(")")[0].split(".values(")[0] in plain:
            yield node.lineno


def targets(node):
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def name_of(target):
    return ast.unparse(target)
