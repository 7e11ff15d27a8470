"""What sessions tell of the use of owners."""

from __future__ import annotations

from headrace_engine.engine.results.usage import Usage
from headrace_engine.engine.sessions.session_news import LOAD_INTERVAL
from headrace_engine.service.convert.session import session_response
from headrace_proto.v1 import session_pb2 as wire
from support.engine.session_rig import SessionRig


async def told(rig: SessionRig) -> list[Usage]:
    """What the next update has, after the next look."""
    rig.timers.advance(LOAD_INTERVAL + 0.001)
    update = await rig.poll()
    return [] if update is None else update.usage


async def test_tokens_count_from_the_beginning_of_the_session(rig: SessionRig) -> None:
    rig.usage["a"] = Usage("a", requests=1, bytes=10, prompt_tokens=100, sampled_tokens=1000)
    rig.session.open(usage=True)
    assert (await rig.update()).usage == [Usage("a", requests=1, bytes=10)]
    assert await told(rig) == []
    rig.usage["a"] = Usage("a", requests=1, prompt_tokens=103, sampled_tokens=1004)
    rig.usage["b"] = Usage("b", sampled_tokens=7)
    assert await told(rig) == [
        Usage("a", requests=1, prompt_tokens=3, sampled_tokens=4),
        Usage("b", sampled_tokens=7),
    ]


async def test_use_is_told_only_to_those_who_asked(rig: SessionRig) -> None:
    rig.usage["a"] = Usage("a", requests=1)
    rig.session.open(load=True)
    assert (await rig.update()).usage == []
    assert await told(rig) == []


async def test_use_arrives_as_it_was_counted(rig: SessionRig) -> None:
    rig.usage["a"] = Usage("a", 1, 2, 3, 4, 5)
    rig.session.open(usage=True)
    message = session_response(await rig.update(), "e1", "i1")
    assert list(message.usage) == [wire.OwnerUsage(owner="a", requests=1, waiting=2, bytes=3)]
