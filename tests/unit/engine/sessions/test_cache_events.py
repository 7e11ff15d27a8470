"""Cache events of a session: the whole cache of each model first, then what changes, numbered without a gap."""

from __future__ import annotations

import random

import pytest
from headrace_engine.engine.cores import cached_blocks
from headrace_engine.engine.cores.cached_blocks import CachedBlocks
from headrace_engine.engine.sessions import session_news
from headrace_engine.engine.sessions.session_news import LOAD_INTERVAL
from headrace_engine.ipc.step_output import CacheChange
from support.engine.session_rig import SessionRig

Announced = dict[str, dict[bool, set[bytes]]]


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16) for number in numbers]


def stored(*numbers: int, parent: int | None = None, host: bool = False) -> CacheChange:
    return CacheChange(True, host, keys(*numbers), b"" if parent is None else keys(parent)[0])


def removed(*numbers: int, host: bool = False) -> CacheChange:
    return CacheChange(False, host, keys(*numbers))


class Listener:
    """A session with cache events, and the caches as they were told."""

    def __init__(self, rig: SessionRig) -> None:
        self.rig = rig
        self.announced: Announced = {}
        self.parents: dict[bytes, bytes] = {}
        self.next = 1
        self.largest = 0
        rig.session.open(load=False, cache_events=True)

    async def listen(self) -> None:
        """Apply all updates that are ready, and those of the next look."""
        self.rig.timers.advance(LOAD_INTERVAL)
        while (update := await self.rig.poll()) is not None:
            if update.cache:
                assert update.first_cache_event == self.next
                self.next += len(update.cache)
            self.largest = max(self.largest, sum(len(event.keys) for event in update.cache))
            for event in update.cache:
                self._apply(event)

    def _apply(self, event) -> None:
        if event.stored is None:
            self.announced[event.model_name] = {False: set(), True: set()}
            return
        held = self.announced[event.model_name][event.host]
        before = event.parent
        for key in event.keys:
            assert (key in held) is not event.stored
            (held.add if event.stored else held.remove)(key)
            if event.stored:
                assert event.block_size == 16
                assert self.parents.setdefault(key, before) == before
                before = key


@pytest.fixture
def cached(rig: SessionRig) -> CachedBlocks:
    rig.cached["smol"] = CachedBlocks()
    rig.cached["smol"].clear(16)
    return rig.cached["smol"]


def of(listener: Listener, model: str = "smol") -> tuple[set[bytes], set[bytes]]:
    return listener.announced[model][False], listener.announced[model][True]


async def test_the_whole_cache_comes_first_and_then_changes(rig: SessionRig, cached: CachedBlocks) -> None:
    cached.apply([stored(1, 2, 3), stored(4, parent=2), removed(3), stored(3, parent=2, host=True)])
    listener = Listener(rig)
    await listener.listen()
    assert of(listener) == ({*keys(1, 2, 4)}, {*keys(3)})
    cached.apply([removed(3, host=True), stored(3, 5, parent=2)])
    await listener.listen()
    assert of(listener) == ({*keys(1, 2, 3, 4, 5)}, set())
    assert listener.parents[keys(4)[0]] == keys(2)[0]


async def test_a_new_core_begins_with_nothing(rig: SessionRig, cached: CachedBlocks) -> None:
    cached.apply([stored(1, 2)])
    listener = Listener(rig)
    await listener.listen()
    cached.clear(16)
    cached.apply([stored(7)])
    await listener.listen()
    assert of(listener) == ({*keys(7)}, set())


async def test_a_model_that_ends_and_one_that_begins_are_told(rig: SessionRig, cached: CachedBlocks) -> None:
    cached.apply([stored(1)])
    listener = Listener(rig)
    await listener.listen()
    del rig.cached["smol"]
    rig.cached["other"] = CachedBlocks()
    rig.cached["other"].clear(16)
    rig.cached["other"].apply([stored(2)])
    await listener.listen()
    assert of(listener) == (set(), set())
    assert of(listener, "other") == ({*keys(2)}, set())


async def test_an_update_has_a_bounded_number_of_keys(
    rig: SessionRig, cached: CachedBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_news, "KEYS_AT_ONCE", 5)
    cached.apply([stored(*range(23))])
    listener = Listener(rig)
    await listener.listen()
    assert of(listener) == ({*keys(*range(23))}, set())
    assert listener.largest <= 5


async def test_who_is_far_behind_gets_the_whole_cache_again(
    rig: SessionRig, cached: CachedBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_blocks, "MOST_KEYS", 10)
    listener = Listener(rig)
    await listener.listen()
    for number in range(50):
        cached.apply([stored(number)])
        if number % 2:
            cached.apply([removed(number)])
    assert cached.next - cached.first <= 10
    await listener.listen()
    assert of(listener) == ({*keys(*range(0, 50, 2))}, set())


async def test_nothing_is_told_to_those_who_did_not_ask(rig: SessionRig, cached: CachedBlocks) -> None:
    rig.session.open(load=False)
    await rig.update()
    cached.apply([stored(1)])
    rig.timers.advance(1)
    assert await rig.poll() is None


@pytest.mark.parametrize("seed", range(5))
async def test_any_order_of_changes_and_updates_tells_the_cache(
    rig: SessionRig, cached: CachedBlocks, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(session_news, "KEYS_AT_ONCE", dice.randrange(1, 8))
    monkeypatch.setattr(cached_blocks, "MOST_KEYS", dice.randrange(1, 40))
    held: tuple[set[int], set[int]] = (set(), set())
    listener = Listener(rig)
    for _ in range(200):
        host = dice.random() < 0.3
        if held[host] and dice.random() < 0.4:
            gone = dice.sample(sorted(held[host]), min(len(held[host]), 3))
            held[host].difference_update(gone)
            cached.apply([removed(*gone, host=host)])
        else:
            new = dice.randrange(300)
            fresh = [number for number in range(new, new + 4) if number not in held[host]]
            held[host].update(fresh)
            cached.apply(stored(number, parent=number - 1 if number else None, host=host) for number in fresh)
        if dice.random() < 0.1:
            cached.clear(16)
            held[False].clear()
            held[True].clear()
        if dice.random() < 0.3:
            await listener.listen()
    await listener.listen()
    assert of(listener) == ({*keys(*held[False])}, {*keys(*held[True])})
