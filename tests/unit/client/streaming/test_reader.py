"""The reader without threads and without a network."""

from __future__ import annotations

import pytest
from headrace import (
    GenerateStatus,
    InternalServerError,
)
from headrace._streaming.reader import SequenceReader
from headrace._values.integrity import checksum
from headrace_proto.v1 import request_pb2, request_service_pb2
from hypothesis import given
from hypothesis import strategies as st
from support.scripted.wire_samples import (
    GENERATING,
    end_record,
    ended,
    ended_info,
    part,
    text_of,
    tokens,
)

IDS = list(range(10, 30))


def take(reader: SequenceReader) -> object:
    """One read that does not wait."""
    with reader.reading():
        return reader.take()


def drain(reader: SequenceReader) -> list[object]:
    """All that is there."""
    found = []
    while (elements := take(reader)) is not None:
        found.append(elements)
    return found


@given(
    ids=st.lists(st.integers(0, 2**32 - 1), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=12),
    reads=st.lists(st.booleans(), max_size=14),
    tail=st.sampled_from(["", "…"]),
    broken=st.sets(st.integers(0, 12)),
)
def test_any_chunking_gives_every_token_once_and_in_order(
    ids: list[int], cuts: list[int], reads: list[bool], tail: str, broken: set[int]
) -> None:
    """Whatever the messages, the reads between them, and the places where the stream is opened again."""
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    reader = SequenceReader()
    found: list[object] = []
    for number, end in enumerate(edges[1:]):
        if number in broken and end < len(ids):
            continue  # Lost with its stream; the next one begins where the reader wants it to.
        reader.feed(tokens(ids, reader.position, end))
        if number < len(reads) and reads[number]:
            found.append(take(reader))
    assert not reader.complete
    reader.feed(ended(ids, tail))
    assert reader.complete
    found += drain(reader)
    assert [token for one in found for token in one.ids_from_generate] == ids
    assert "".join(one.text for one in found) == text_of(ids) + tail
    positions = [one.position for one in found]
    lengths = [len(one.ids_from_generate) for one in found]
    assert positions == [sum(lengths[:place]) for place in range(len(lengths))]
    assert reader.status() is GenerateStatus.GenerateFinished


@given(ids=st.lists(st.integers(0, 2**32 - 1), max_size=50), cut=st.integers(0, 50))
def test_the_checksum_runs_on_over_parts(ids: list[int], cut: int) -> None:
    assert checksum(ids[cut:], checksum(ids[:cut])) == checksum(ids)


def test_a_hole_is_an_error_and_what_came_before_stays_readable() -> None:
    reader = SequenceReader()
    reader.feed(tokens(IDS, 0, 5))
    with pytest.raises(InternalServerError, match="expected token 5, received token 7"):
        reader.feed(tokens(IDS, 7, 9))
    assert take(reader).ids_from_generate == IDS[:5]


def test_a_repetition_is_an_error() -> None:
    reader = SequenceReader()
    reader.feed(tokens(IDS, 0, 5))
    with pytest.raises(InternalServerError, match="expected token 5, received token 4"):
        reader.feed(tokens(IDS, 4, 6))


@pytest.mark.parametrize("field", ["checksum_before", "checksum_after"])
def test_a_wrong_checksum_is_an_error(field: str) -> None:
    reader = SequenceReader()
    message = tokens(IDS, 0, 5)
    setattr(message.elements, field, 12345)
    with pytest.raises(InternalServerError, match="checksum of tokens 0 to 4"):
        reader.feed(message)
    assert take(reader) is None


def test_a_changed_id_is_an_error() -> None:
    reader = SequenceReader()
    message = tokens(IDS, 0, 5)
    message.elements.token_ids[2] += 1
    with pytest.raises(InternalServerError, match="checksum"):
        reader.feed(message)


def test_an_end_before_the_last_token_is_an_error() -> None:
    reader = SequenceReader()
    reader.feed(tokens(IDS, 0, 5))
    with pytest.raises(InternalServerError, match="ends at 3, but token 4 arrived"):
        reader.feed(ended(IDS[:3]))


def test_an_end_with_another_checksum_is_an_error() -> None:
    reader = SequenceReader()
    reader.feed(tokens(IDS))
    record = end_record(IDS)
    record.checksum ^= 1
    with pytest.raises(InternalServerError, match="checksum of all 20 tokens"):
        reader.feed(ended(IDS, record=record))


def test_tokens_beyond_a_known_end_are_an_error() -> None:
    reader = SequenceReader()
    reader.observe(ended_info(IDS[:3]))
    with pytest.raises(InternalServerError, match="ends at 3"):
        reader.feed(tokens(IDS, 0, 5))
    assert reader.position == 0


def test_lists_of_another_length_than_the_ids_are_an_error() -> None:
    short = request_pb2.Logprobs(token_logprobs=[-1.0])
    with pytest.raises(InternalServerError, match="each of 5 ids"):
        SequenceReader().feed(tokens(IDS, 0, 5, logprobs=short))


def test_a_late_reader_trusts_the_first_checksum_alone() -> None:
    reader = SequenceReader(position=5)
    reader.feed(tokens(IDS, 5, 8))
    with pytest.raises(InternalServerError, match="checksum"):
        reader.feed(request_service_pb2.GeneratedElementsResponse(status=GENERATING, elements=_moved(8, 9)))
    assert take(reader).position == 5


def _moved(begin: int, end: int) -> request_pb2.GeneratedElements:
    """A part that is whole in itself, and of another sequence."""
    elements = part([1] * end, begin, end)
    assert checksum(elements.token_ids, elements.checksum_before) == elements.checksum_after
    return elements


def test_logprobs_of_several_messages_are_joined() -> None:
    reader = SequenceReader()
    for begin in (0, 2):
        logprobs = request_pb2.Logprobs(
            token_logprobs=[-0.5, -1.5], top_count=2, top_ids=[1, 2, 3, 4], top_logprobs=[-0.5, -0.75, -1.5, -2.0]
        )
        reader.feed(tokens(IDS, begin, begin + 2, logprobs=logprobs))
    elements = take(reader)
    assert elements.token_logprobs_list == [-0.5, -1.5] * 2
    assert elements.log_probs_list == [[(1, -0.5), (2, -0.75)], [(3, -1.5), (4, -2.0)]] * 2


def test_cache_use_is_in_every_element_also_in_one_without_ids() -> None:
    reader = SequenceReader()
    prefix = request_pb2.PrefixReuse(prefix_cache_len=48, prefix_len_gpu=32, prefix_len_cpu=16)
    reader.feed(tokens(IDS, prefix=prefix))
    reader.feed(ended(IDS, "…"))
    first = take(reader)
    assert (first.prefix_cache_len, first.prefix_len_gpu, first.prefix_len_cpu) == (48, 32, 16)
    reader = SequenceReader()
    reader.feed(tokens(IDS, prefix=prefix))
    take(reader)
    reader.feed(ended(IDS, "…"))
    last = take(reader)
    assert (last.text, last.ids_from_generate, last.prefix_cache_len, last.position) == ("…", [], 48, len(IDS))
