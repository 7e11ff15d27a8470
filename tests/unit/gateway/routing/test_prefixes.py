"""Prompts go where their beginnings were computed, unless somebody would wait for that."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_gateway.engines import prefixes as module
from headrace_gateway.engines.prefixes import IDS, TEXT_BYTES, Prefixes, pieces
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.v1.generation_pb2 import Chat, ChatMessage

TEXT = "It was the best of times, it was the worst of times, " * 10


def text(prompt: str, **more: Any) -> wire.StartRequestRequest:
    return wire.StartRequestRequest(model_name="smol", text=prompt, **more)


def chat(*contents: str, **more: Any) -> wire.StartRequestRequest:
    messages = [ChatMessage(role=("user", "assistant")[turn % 2], content=each) for turn, each in enumerate(contents)]
    return wire.StartRequestRequest(model_name="smol", chat=Chat(messages=messages, **more))


def ids(count: int) -> wire.StartRequestRequest:
    return wire.StartRequestRequest(model_name="smol", token_ids={"ids": range(count)})


def common(one: wire.StartRequestRequest, other: wire.StartRequestRequest) -> int:
    """Digests that two prompts have in common from their beginnings on."""
    held = Prefixes()
    held.hold(pieces(one), "i1", 0)
    return held.known(pieces(other), "i1")


def test_prompts_share_the_digests_of_what_they_share() -> None:
    assert len(pieces(text(TEXT))) == len(TEXT) // TEXT_BYTES
    assert common(text(TEXT), text(TEXT + "And then?")) == len(TEXT) // TEXT_BYTES
    assert common(text(TEXT), text(TEXT[:200] + "And then?" * 30)) == 200 // TEXT_BYTES
    assert common(ids(100), ids(1000)) == 100 // IDS
    assert common(chat(TEXT), chat(TEXT, "An answer.", "Go on.")) >= len(TEXT) // TEXT_BYTES
    assert pieces(text("short")) == []


@pytest.mark.parametrize(
    "other",
    [
        text(TEXT, config={"cache_salt": "mine"}),
        text(TEXT, config={"lora_name": "adapter"}),
        wire.StartRequestRequest(model_name="other", text=TEXT),
        chat(TEXT),
        text("x" + TEXT),
    ],
)
def test_nothing_is_shared_beyond_what_an_engine_shares(other: wire.StartRequestRequest) -> None:
    assert common(text(TEXT), other) == 0


def test_chats_with_other_tools_share_nothing() -> None:
    assert common(chat(TEXT), chat(TEXT, tools=['{"name": "search"}'])) == 0


def test_a_request_without_the_cache_has_no_place() -> None:
    assert pieces(text(TEXT, config={"use_prefix_cache": False})) == []


def test_a_restarted_engine_has_nothing() -> None:
    held = Prefixes()
    held.hold(pieces(text(TEXT)), "i1", 0)
    assert held.known(pieces(text(TEXT)), "i2") == 0
    held.hold([b"a"], "i2", 0)
    assert len(held) == 1


def test_what_an_engine_can_hold_bounds_what_is_kept_of_it() -> None:
    held = Prefixes()
    held.hold(pieces(ids(160)), "i1", 64)
    assert len(held) == 64 // IDS
    assert held.known(pieces(ids(160)), "i1") == 64 // IDS  # the beginning is kept longest


def test_memory_is_bounded_whatever_engines_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 8)
    monkeypatch.setattr(module, "MOST_PIECES", 5)
    held = Prefixes()
    for start in range(20):
        held.hold(pieces(text(f"{start}{TEXT}")), "i1", 10**9)
    assert (len(held), len(pieces(text(TEXT)))) == (8, 5)
