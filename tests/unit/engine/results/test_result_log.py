"""The log of one sequence: tokens by position, checksum, status, readers that wait."""

from __future__ import annotations

import asyncio
import struct
from zlib import crc32

import pytest
from headrace_engine.engine.results.result_log import MAX_READ_TEXT, MAX_READ_TOKENS, ResultLog
from headrace_engine.engine.results.token_details import DetailOptions
from headrace_engine.errors import NotFound, OutOfRange
from headrace_engine.result_types import EndRecord, FinishReason, GenerateStatus, PrefixReuse, RequestStat
from headrace_engine.token_types import TopLogprobs
from support.clocks.clock import settle

IDS = (5, 0, 383, 2**32 - 1, 7)


def filled(ids: tuple[int, ...] = IDS) -> ResultLog:
    log = ResultLog()
    for token_id in ids:
        log.append(token_id, f"<{token_id}>")
    return log


def end(log: ResultLog, reason: FinishReason = FinishReason.EOS, text: str = "") -> EndRecord:
    record = EndRecord(reason, len(log), text, log.checksum, RequestStat())
    log.finish(record)
    return record


def crc(ids: tuple[int, ...]) -> int:
    return crc32(struct.pack(f"<{len(ids)}I", *ids))


class TestChecksum:
    def test_is_crc32_over_all_ids_as_little_endian_words(self) -> None:
        assert filled().checksum == crc(IDS)

    def test_before_the_first_token_is_zero(self) -> None:
        assert ResultLog().checksum == 0

    @pytest.mark.parametrize("position", range(len(IDS)))
    def test_an_element_has_it_before_its_first_and_after_its_last(self, position: int) -> None:
        result = filled().read(position)
        assert result is not None
        assert result.elements is not None
        assert result.elements.checksum_before == crc(IDS[:position])
        assert result.elements.checksum_after == crc(IDS)


class TestRead:
    @pytest.mark.parametrize("position", range(len(IDS)))
    def test_returns_all_that_is_unread_as_one_element(self, position: int) -> None:
        result = filled().read(position)
        assert result is not None
        assert result.elements is not None
        assert result.elements.position == position
        assert result.elements.token_ids == list(IDS[position:])
        assert result.elements.text == "".join(f"<{token_id}>" for token_id in IDS[position:])
        assert result.end is None

    def test_nothing_unread_yet_is_none(self) -> None:
        assert filled().read(len(IDS)) is None

    def test_the_end_comes_with_the_last_tokens(self) -> None:
        log = filled()
        record = end(log)
        result = log.read(2)
        assert result is not None
        assert result.end is record
        assert result.elements is not None
        assert result.elements.token_ids == list(IDS[2:])
        assert result.status is GenerateStatus.FINISHED

    def test_after_the_last_token_the_end_comes_alone(self) -> None:
        log = filled()
        record = end(log, text="\ufffd")
        result = log.read(len(IDS))
        assert result is not None
        assert result.elements is None
        assert result.end is record

    def test_an_empty_sequence_has_only_its_end(self) -> None:
        log = ResultLog()
        record = end(log, FinishReason.STOPPED)
        result = log.read(0)
        assert result is not None
        assert (result.elements, result.end) == (None, record)

    def test_a_read_brings_fewer_tokens_if_each_has_many_candidates(self) -> None:
        log = ResultLog(DetailOptions(True, 20))
        for token_id in range(MAX_READ_TOKENS):
            log.append(token_id, "", -1.0, (list(range(20)), [-1.0] * 20))
        first = log.read(0)
        assert first is not None
        assert first.elements is not None
        assert first.elements.top_logprobs is not None
        read = len(first.elements.token_ids)
        assert 0 < read * 20 == len(first.elements.top_logprobs.ids) <= 48 * 1024
        rest = log.read(read)
        assert rest is not None
        assert rest.elements is not None
        assert rest.elements.token_ids == list(range(read, MAX_READ_TOKENS))

    def test_ids_delivered_elsewhere_have_no_candidates(self) -> None:
        log = ResultLog(DetailOptions(True, 2), delivered=[5, 6])
        log.append(7, "x", -1.0, ([8, 9], [-0.5, -1.5]))
        assert log.elements(2, 3).top_logprobs == TopLogprobs(2, [8, 9], [-0.5, -1.5])

    def test_a_long_log_is_read_in_pieces_and_ends_with_the_last(self) -> None:
        ids = tuple(range(MAX_READ_TOKENS + 3))
        log = filled(ids)
        end(log)
        first = log.read(0)
        assert first is not None
        assert first.elements is not None
        assert first.elements.token_ids == list(ids[:MAX_READ_TOKENS])
        assert (first.end, first.status) == (None, GenerateStatus.GENERATING)
        last = log.read(MAX_READ_TOKENS)
        assert last is not None
        assert last.elements is not None
        assert last.elements.token_ids == list(ids[MAX_READ_TOKENS:])
        assert last.elements.checksum_before == first.elements.checksum_after
        assert last.end is not None

    def test_much_text_is_read_in_pieces(self) -> None:
        log = ResultLog()
        piece = "é" * (MAX_READ_TEXT // 8)  # a quarter of what one read returns
        for token_id in range(6):
            log.append(token_id, piece)
        lengths = []
        position = 0
        while result := log.read(position):
            assert result.elements is not None
            assert len(result.elements.text.encode()) <= MAX_READ_TEXT
            lengths.append(len(result.elements.token_ids))
            position += lengths[-1]
        assert lengths == [4, 2]

    def test_a_token_larger_than_one_read_is_returned_alone(self) -> None:
        log = ResultLog()
        for token_id, text in enumerate(["a", "b" * (MAX_READ_TEXT + 1), "c"]):
            log.append(token_id, text)
        for position in range(3):
            result = log.read(position)
            assert result is not None
            assert result.elements is not None
            assert result.elements.token_ids == [position]

    def test_every_cut_gives_the_same_tokens(self) -> None:
        """What a reader sees depends on its position alone: any way to cut the log joins to the same."""
        log = filled()
        for cut in range(len(IDS) + 1):
            left, right = log.elements(0, cut), log.elements(cut, len(IDS))
            assert left.token_ids + right.token_ids == list(IDS)
            assert left.text + right.text == log.elements(0, len(IDS)).text
            assert left.checksum_after == right.checksum_before

    def test_logprobs_are_as_many_as_ids_where_asked_for(self) -> None:
        log = ResultLog(DetailOptions(True))
        log.append(1, "a", -0.5)
        log.append(2, "b", -0.25)
        assert log.elements(0, 2).token_logprobs == [-0.5, -0.25]
        assert log.elements(1, 2).token_logprobs == [-0.25]

    def test_logprobs_are_none_where_not_asked_for(self) -> None:
        log = ResultLog()
        log.append(1, "a", -0.5)
        assert log.elements(0, 1).token_logprobs is None

    def test_the_use_of_the_prefix_cache_is_in_every_element(self) -> None:
        log = filled()
        log.contents.prefix = PrefixReuse(prefix_len_gpu=48)
        for position in (0, 3):
            elements = log.elements(position, len(IDS))
            assert elements.prefix is not None
            assert elements.prefix.prefix_cache_len == 48


class TestStatus:
    def test_goes_from_init_over_context_finished_to_generating(self) -> None:
        log = ResultLog()
        seen = [log.status]
        for token_id in range(3):
            log.append(token_id, "")
            seen.append(log.status)
        first, second, third = GenerateStatus.INIT, GenerateStatus.CONTEXT_FINISHED, GenerateStatus.GENERATING
        assert seen == [first, second, third, third]

    def test_a_reads_status_is_terminal_only_with_the_end(self) -> None:
        log = filled((1,))
        first = log.read(0)
        assert first is not None
        assert first.status is GenerateStatus.CONTEXT_FINISHED
        log.append(2, "")
        second = log.read(1)
        assert second is not None
        assert second.status is GenerateStatus.GENERATING

    @pytest.mark.parametrize("reason", FinishReason)
    def test_of_an_ended_sequence_is_that_of_its_finish_reason(self, reason: FinishReason) -> None:
        log = filled()
        end(log, reason)
        assert log.status is reason.status
        assert log.status.terminal


class TestPosition:
    @pytest.mark.parametrize("position", [0, 3, len(IDS)])
    def test_up_to_the_length_is_allowed(self, position: int) -> None:
        filled().check_position(position)

    @pytest.mark.parametrize("position", [-1, len(IDS) + 1, 2**32 - 1])
    def test_outside_is_refused_with_the_numbers(self, position: int) -> None:
        with pytest.raises(OutOfRange) as caught:
            filled().check_position(position)
        assert caught.value.reason == "POSITION_OUT_OF_RANGE"
        assert caught.value.metadata == {"first_position": "0", "generated_length": "5"}
        assert str(position) in caught.value.message
        assert "0 to 5" in caught.value.message


class TestWaiting:
    async def test_ends_at_once_where_something_is_unread(self) -> None:
        log = filled()
        await log.wait(4)
        end(log)
        await log.wait(5)
        await log.wait_end()

    async def test_every_reader_is_woken_at_its_own_position(self) -> None:
        log = filled((1, 2))
        early, late, ended = (asyncio.ensure_future(wait) for wait in (log.wait(2), log.wait(3), log.wait_end()))
        await settle()
        log.append(3, "")
        log.wake()
        await settle()
        assert (early.done(), late.done(), ended.done()) == (True, False, False)
        log.append(4, "")
        log.wake()
        await settle()
        assert (late.done(), ended.done()) == (True, False)
        end(log)
        await ended

    async def test_readers_are_woken_once_a_step_and_not_once_a_token(self) -> None:
        log = ResultLog()
        reader = asyncio.ensure_future(log.wait(0))
        await settle()
        log.append(1, "")
        await settle()
        assert not reader.done()
        log.wake()
        await reader

    async def test_release_raises_in_every_reader_that_waits(self) -> None:
        log = filled()
        readers = [asyncio.ensure_future(wait) for wait in (log.wait(5), log.wait(5), log.wait_end())]
        await settle()
        log.release()
        for reader in readers:
            with pytest.raises(NotFound, match="released"):
                await reader

    async def test_after_release_reading_on_raises_even_with_tokens_unread(self) -> None:
        log = filled()
        end(log)
        log.release()
        with pytest.raises(NotFound, match="released"):
            await log.wait(0)
        with pytest.raises(NotFound, match="released"):
            await log.wait_end()

    async def test_a_reader_that_leaves_is_forgotten(self) -> None:
        log = ResultLog()
        reader = asyncio.ensure_future(log.wait(0))
        await settle()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        log.append(1, "")
        log.wake()
        await log.wait(0)
