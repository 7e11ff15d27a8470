"""What cache events say of an engine, which blocks a prompt has, and where it goes by that."""

from __future__ import annotations

import pytest
from headrace_gateway.engines import cached_blocks, prefixes
from headrace_gateway.engines.cached_blocks import CachedBlocks
from headrace_gateway.engines.prefixes import RECENT_SECONDS, Prefixes, PromptKeys, pieces
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.v1 import session_pb2
from support.scripted.engine_answers import RUNNING
from unit.gateway.conftest import until
from unit.gateway.routing.test_affinity import TEXT, other, report, went

CLEARED, STORED, REMOVED = (
    session_pb2.CACHE_EVENT_KIND_CLEARED,
    session_pb2.CACHE_EVENT_KIND_STORED,
    session_pb2.CACHE_EVENT_KIND_REMOVED,
)
DEVICE, HOST = session_pb2.CACHE_TIER_DEVICE, session_pb2.CACHE_TIER_HOST


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16) for number in numbers]


def event(kind: int, *numbers: int, tier: int = DEVICE, model: str = "smol") -> session_pb2.CacheEvent:
    return session_pb2.CacheEvent(kind=kind, model_name=model, block_hashes=keys(*numbers), tier=tier)


def events(first: int, *each: session_pb2.CacheEvent) -> session_pb2.CacheEvents:
    return session_pb2.CacheEvents(first_sequence=first, events=each)


def prompt_of(text: str) -> list[bytes]:
    return pieces(wire.StartRequestRequest(model_name="smol", text=text))


def test_blocks_count_while_any_tier_has_them() -> None:
    cached = CachedBlocks()
    cached.apply(events(1, event(CLEARED), event(STORED, 1, 2), event(STORED, 2, tier=HOST)))
    cached.apply(events(4, event(REMOVED, 1, 2)))
    assert [cached.known("smol", keys(*numbers)) for numbers in ([1], [1, 2], [1, 2, 3])] == [0, 2, 2]
    cached.apply(events(5, event(REMOVED, 2, tier=HOST)))
    assert len(cached) == 0
    assert cached.follows("smol")


def test_models_are_apart_and_cleared_one_by_one() -> None:
    cached = CachedBlocks()
    cached.apply(events(1, event(STORED, 1), event(STORED, 1, model="other"), event(CLEARED)))
    assert (cached.known("smol", keys(1)), cached.known("other", keys(1))) == (0, 1)


@pytest.mark.parametrize("first", [1, 2, 4])
def test_a_gap_is_an_error(first: int) -> None:
    cached = CachedBlocks()
    cached.apply(events(1, event(CLEARED), event(STORED, 1)))
    with pytest.raises(ValueError, match="where 3 was due"):
        cached.apply(events(first, event(STORED, 2)))
    cached.lost()
    assert not cached.follows("smol")
    cached.apply(events(1, event(CLEARED)))


def test_what_is_kept_of_an_engine_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_blocks, "MOST_BLOCKS", 10)
    cached = CachedBlocks()
    cached.apply(events(1, event(STORED, *range(8)), event(STORED, *range(4, 20)), event(STORED, 3, tier=HOST)))
    assert len(cached) == 10
    cached.apply(events(4, event(REMOVED, *range(20))))
    assert len(cached) == 1


def test_pieces_reach_as_far_into_the_blocks_as_into_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    known = PromptKeys()
    known.learn([b"a", b"b", b"c", b"d"], b"".join(keys(1, 2)))
    assert known.of([b"a", b"b", b"c", b"d", b"e"]) == [b"", *keys(1, 1, 2)]
    known.learn([b"a", b"f"], b"".join(keys(1, 2, 3, 4)))
    assert known.of([b"a", b"f"]) == keys(2, 4)
    known.learn([b"g"], b"")
    assert known.of([b"g"]) == []
    monkeypatch.setattr(prefixes, "MOST_KEYS", 3)
    known.learn([b"x", b"y"], b"".join(keys(8, 9)))
    assert len(known) == 3
    assert known.of([b"x", b"y"]) == keys(8, 9)


def test_what_was_sent_long_ago_is_told_from_what_is_sent_now() -> None:
    now = 100.0
    sent = Prefixes(lambda: now)
    sent.hold([b"a", b"b"], "i1", 0)
    now += RECENT_SECONDS + 1
    sent.hold([b"a"], "i1", 0)
    assert sent.known([b"a", b"b"], "i1", RECENT_SECONDS) == 1
    assert sent.known([b"a", b"b"], "i1") == 2


@pytest.fixture
async def front(world, first, second):
    """Engines that tell keys of prompts, and what they have in their caches."""
    for engine in (first, second):
        engine.features = [*engine.features, "cache_events"]
        engine.prompt_keys = b"".join(keys(*range(1, 9)))
    front = await world.gateway(e1=first, e2=second)
    for engine in (first, second):
        await until(engine, lambda e=engine: e.sessions and e.sessions[-1].wants_cache)
    return front


async def tell(front, name: str, *each: session_pb2.CacheEvent) -> None:
    """What an engine tells of its cache."""
    cached = front.gateway.pool.named(name).cached
    cached.apply(events(cached._next, event(CLEARED), *each))


async def test_gateways_ask_for_keys_and_keep_them(front, first, second):
    answer = await front.requests.StartRequest(wire.StartRequestRequest(model_name="smol", text=TEXT))
    assert answer.prompt_keys == b""
    asked = [heard.metadata for engine in (first, second) for heard in engine.asked("StartRequest")]
    assert [metadata["headrace-prompt-keys"] for metadata in asked] == ["1"]
    assert front.gateway._router._keys.of(prompt_of(TEXT)) == keys(*range(1, 9))


async def forgets(front, name: str) -> None:
    """Let a prompt that was sent to an engine be so long ago that its events must tell of it."""
    sent = front.gateway.pool.named(name).prefixes
    sent._held.update((piece, held - RECENT_SECONDS - 1) for piece, held in sent._held.items())


async def test_an_engine_that_evicted_the_prompt_is_like_any_other(front):
    name = await went(front, TEXT)
    await tell(front, name, event(STORED, *range(1, 9)))
    await tell(front, other(name))
    await forgets(front, name)
    assert await went(front, TEXT) == name
    await tell(front, name, event(STORED, 1, 2))
    await tell(front, other(name), event(STORED, *range(1, 6)))
    await forgets(front, name)
    assert await went(front, TEXT) == other(name)


async def test_what_another_gateway_had_computed_counts(front):
    """The keys are of the prompt, wherever it was computed."""
    name = await went(front, TEXT)
    await tell(front, name)
    await tell(front, other(name), event(STORED, *range(1, 9)))
    await forgets(front, name)
    assert await went(front, TEXT) == other(name)
    report(front, other(name), running=1, waiting=1)
    report(front, name)
    assert await went(front, TEXT) == name


async def test_what_was_just_sent_counts_before_any_event(front):
    name = await went(front, TEXT)
    await tell(front, name)
    await tell(front, other(name))
    assert [await went(front, TEXT) for _ in range(2)] == [name] * 2


async def test_an_engine_whose_stream_broke_is_known_by_what_was_sent(front, first, second):
    name = await went(front, TEXT)
    for each in ("e1", "e2"):
        await tell(front, each)
        await forgets(front, each)
        front.gateway.pool.named(each).cached.lost()
    assert await went(front, TEXT) == name


async def test_engines_without_cache_events_are_not_asked_for_them(world):
    engine = await world.engine(smol=RUNNING)
    await world.gateway(e1=engine)
    await until(engine, lambda: engine.sessions and engine.sessions[-1].wants_load)
    assert not engine.sessions[-1].wants_cache
