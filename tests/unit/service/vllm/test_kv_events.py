"""vLLM's events of the prefix cache."""

from __future__ import annotations

from typing import Any

from headrace_engine.engine.sessions.session_update import CacheEvent
from headrace_engine.service.vllm import kv_events
from headrace_engine.service.vllm.kv_events import KvEvents, PromptBlocks

A, B, C = (bytes([value]) * 16 for value in (1, 2, 0xFF))
IDS = list(range(6))


def stored(*keys: bytes, parent: bytes = b"", host: bool = False) -> CacheEvent:
    return CacheEvent("m", True, list(keys), parent, host, 2)


def removed(*keys: bytes) -> CacheEvent:
    return CacheEvent("m", False, list(keys))


CLEARED = CacheEvent("m", None, [])


def told(batch: Any) -> list[Any]:
    """Kinds of events, with the first ids of stored blocks."""
    found = []
    for event in () if batch is None else batch.events:
        kind = event.WhichOneof("data")
        found.append((kind, list(event.stored.blocks[0].token_ids)) if kind == "stored" else kind)
    return found


def test_blocks_are_told_with_their_ids_and_parents() -> None:
    blocks = PromptBlocks()
    blocks.learn([A, B, C], IDS, 2)
    batch = KvEvents(blocks, 7).batch([CLEARED, stored(A, B, C)])
    assert told(batch) == ["cleared", ("stored", [0, 1]), ("stored", [2, 3]), ("stored", [4, 5])]
    first, second, third = (event.stored for event in batch.events[1:])
    assert not first.HasField("parent_block_hash")
    assert second.parent_block_hash == first.blocks[0].block_hash
    assert third.blocks[0].block_hash == -1
    assert (batch.sequence_number, batch.dp_rank, first.blocks[0].block_size) == (7, 0, 2)


def test_a_block_waits_for_its_ids_and_for_the_one_before() -> None:
    blocks = PromptBlocks()
    events = KvEvents(blocks, 1)
    assert events.batch([stored(A, B)]) is None
    blocks.learn([A, B], IDS, 2)
    assert told(events.batch([])) == [("stored", [0, 1]), ("stored", [2, 3])]
    assert events.batch([]) is None


def test_only_blocks_that_were_told_are_removed() -> None:
    blocks = PromptBlocks()
    blocks.learn([A], IDS, 2)
    events = KvEvents(blocks, 1)
    events.batch([stored(A, B)])
    batch = events.batch([removed(A, B)])
    assert [len(event.removed.block_hashes) for event in batch.events] == [1]
    blocks.learn([A, B], IDS, 2)
    assert events.batch([]) is None


def test_a_block_may_be_on_both_tiers() -> None:
    blocks = PromptBlocks()
    blocks.learn([A], IDS, 2)
    batch = KvEvents(blocks, 1).batch([stored(A), stored(A, host=True)])
    assert [event.stored.blocks[0].cache_level for event in batch.events] == [0, 1]


def test_after_a_clear_blocks_are_told_again() -> None:
    blocks = PromptBlocks()
    blocks.learn([A], IDS, 2)
    events = KvEvents(blocks, 1)
    events.batch([stored(A)])
    batch = events.batch([CLEARED, stored(A)])
    assert (told(batch), batch.sequence_number) == (["cleared", ("stored", [0, 1])], 2)


def test_the_ids_of_the_newest_blocks_are_kept(monkeypatch) -> None:
    monkeypatch.setattr(kv_events, "MOST_BLOCKS", 2)
    blocks = PromptBlocks()
    blocks.learn([A, B, C], IDS, 2)
    assert [blocks.of(key) is not None for key in (A, B, C)] == [False, True, True]
    assert list(blocks.since(2)) == [C]
