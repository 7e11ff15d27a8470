"""Cache events of a real engine: the blocks of a prompt are told under the keys that its start told."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from headrace import Client
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.v1 import session_pb2
from headrace_proto.v1.request_service_pb2_grpc import RequestServiceStub as Stub
from support.clocks.waiting import wait_until
from support.servers.crowd import serve
from support.servers.processes import engine_server

BLOCK, KEY = 16, 16
ASKED = (("headrace-prompt-keys", "1"),)


class Cache:
    """What an engine's cache events tell of its model, as it comes."""

    def __init__(self, stub: Stub) -> None:
        self.held: set[bytes] = set()
        self.cleared = 0
        self._sent: queue.Queue[session_pb2.SessionRequest | None] = queue.Queue()
        self._sent.put(session_pb2.SessionRequest(options={"cache_events": {}}))
        call = stub.Session(iter(self._sent.get, None))
        self._reading = threading.Thread(target=self._read, args=(call,), daemon=True)
        self._reading.start()

    def close(self) -> None:
        self._sent.put(None)
        self._reading.join(60)
        assert not self._reading.is_alive()

    def _read(self, call: Iterator[session_pb2.SessionResponse]) -> None:
        for message in call:
            for event in message.cache_events.events:
                if event.kind == session_pb2.CACHE_EVENT_KIND_CLEARED:
                    self.cleared += 1
                    self.held.clear()
                elif event.kind == session_pb2.CACHE_EVENT_KIND_STORED:
                    assert event.block_size == BLOCK
                    self.held.update(event.block_hashes)
                else:
                    self.held.difference_update(event.block_hashes)


@pytest.fixture(scope="module")
def stub(tiny: Path) -> Iterator[Stub]:
    with engine_server("e1") as engine, Client(engine.address) as client:
        serve(client, tiny)
        with grpc.insecure_channel(engine.address) as channel:
            yield Stub(channel)


@pytest.fixture
def cache(stub: Stub) -> Iterator[Cache]:
    cache = Cache(stub)
    yield cache
    cache.close()


def keys_of(stub: Stub, ids: list[int], **config: object) -> list[bytes]:
    """Start a prompt; return the keys that the start tells."""
    request = wire.StartRequestRequest(
        model_name="tiny", token_ids={"ids": ids}, config={"max_new_tokens": 40, "ignore_eos": True, **config}
    )
    told = stub.StartRequest(request, metadata=ASKED).prompt_keys
    return [told[begin : begin + KEY] for begin in range(0, len(told), KEY)]


def test_a_prompts_blocks_are_told_by_their_keys(stub: Stub, cache: Cache) -> None:
    prompt = [1 + number % 50 for number in range(100)]
    keys = keys_of(stub, prompt)
    assert len(keys) == 100 // BLOCK
    wait_until(lambda: cache.held >= set(keys), "the blocks of the prompt are not told")
    wait_until(lambda: len(cache.held) >= 139 // BLOCK, "the blocks of the answer are not told")
    assert cache.cleared == 1
    again = Cache(stub)
    wait_until(lambda: again.held >= set(keys), "the whole cache does not come first")
    again.close()


def test_prompts_that_share_no_blocks_share_no_keys(stub: Stub, cache: Cache) -> None:
    prompt = [2 + number % 50 for number in range(64)]
    keys = keys_of(stub, prompt)
    assert keys_of(stub, [*prompt, 7])[:4] == keys
    salted = keys_of(stub, prompt, cache_salt="mine")
    assert set(keys).isdisjoint(salted)
    wait_until(lambda: cache.held >= {*keys, *salted}, "the blocks are not told")
    assert keys_of(stub, prompt, use_prefix_cache=False) == []


def test_keys_are_told_to_none_who_did_not_ask(stub: Stub) -> None:
    request = wire.StartRequestRequest(model_name="tiny", token_ids={"ids": range(3, 80)}, config={"max_new_tokens": 1})
    assert stub.StartRequest(request).prompt_keys == b""
