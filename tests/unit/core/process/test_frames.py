"""The frames between front half and core, and between ranks: every message arrives as it was sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import EnumType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from headrace_engine.ipc import frames
from headrace_engine.ipc.commands import AddSequence, CoreCommand, Ping
from headrace_engine.ipc.messages import CoreMessage, Pong
from headrace_engine.ipc.ranks import RankAnswer, RankCommand
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.sampling_params import SamplingParams
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

KINDS = (CoreCommand, CoreMessage, RankCommand, RankAnswer)
TYPES = tuple(dict.fromkeys(each for kind in KINDS for each in get_args(kind)))

_unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type as MessagePack can carry them: integers of 64 bits, all floats."""
    simple = {
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(),
        bool: st.booleans(),
        str: st.text(),
        bytes: st.binary(max_size=20),
        type(None): st.none(),
    }
    if hint in simple:
        return simple[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return st.builds(hint, **{name: any_of(kind) for name, kind in get_type_hints(hint).items()})
    if isinstance(hint, EnumType):
        return st.sampled_from(list(hint))
    arguments = get_args(hint)
    if get_origin(hint) is list:
        return st.lists(any_of(arguments[0]), max_size=5)
    if get_origin(hint) is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(any_of, arguments))
    if get_origin(hint) is tuple:
        return st.lists(any_of(arguments[0]), max_size=5).map(tuple)
    if get_origin(hint) in (Mapping, dict):
        return st.dictionaries(any_of(arguments[0]), any_of(arguments[1]), max_size=5)
    return st.one_of(*map(any_of, arguments))


messages = st.one_of(*map(any_of, TYPES))


def same(left: Any, right: Any) -> bool:
    """Equal in value and type, NaN included."""
    if type(left) is not type(right):
        return False
    if is_dataclass(left):
        return all(same(getattr(left, field.name), getattr(right, field.name)) for field in fields(left))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


@_unhurried
@given(messages)
def test_every_message_survives(message: Any) -> None:
    assert same(frames.decode(frames.encode(message)), message)


def test_every_message_type_has_a_tag_of_its_own() -> None:
    assert set(frames._TAGS) == set(TYPES)
    assert len(set(frames._TAGS.values())) == len(TYPES)


@_unhurried
@given(st.lists(messages, max_size=5), st.integers(1, 40))
def test_frames_survive_any_cut(sent: list[Any], width: int) -> None:
    stream = b"".join(map(frames.frame, sent))
    reader = frames.FrameReader()
    received = [message for i in range(0, len(stream), width) for message in reader.feed(stream[i : i + width])]
    assert same(received, sent)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 5e-324])
def test_odd_floats_survive(value: float) -> None:
    output = frames.decode(frames.encode(StepOutput(keys=[1], token_ids=[2], logprobs=[value])))
    assert isinstance(output, StepOutput)
    assert str(output.logprobs[0]) == str(value)


def test_large_numbers_survive() -> None:
    message = AddSequence(2**64 - 1, (2**32 - 1,), SamplingParams(seed=2**64 - 1), 1)
    assert frames.decode(frames.encode(message)) == message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty message"),
        (b"\xee\x80", "unknown message type 0xee"),
        (frames.encode(Ping(1))[:1] + b"\x80", "Ping: Object missing required field `number`"),
        (frames.encode(Ping(1))[:-1], "Ping: Input data was truncated"),
        (frames.encode(Ping(1))[:1] + b"\x81\xa6number\xa1x", "Ping: Expected `int`, got `str`"),
    ],
)
def test_what_is_no_message_is_an_error(data: bytes, words: str) -> None:
    with pytest.raises(frames.BadMessage, match=words):
        frames.decode(data)


def test_frames_after_one_whose_receiver_failed_are_not_lost() -> None:
    reader = frames.FrameReader()
    stream = reader.feed(frames.frame(Pong(1)) + frames.frame(Pong(2)))
    assert next(stream) == Pong(1)
    del stream
    assert list(reader.feed(b"")) == [Pong(2)]
