"""What a reader says of itself: its status, its window, and how it fails."""

from __future__ import annotations

import pytest
from headrace import (
    EngineLostError,
    GenerateStatus,
    InternalServerError,
    RequestReleasedError,
    UnavailableError,
)
from headrace._streaming.reader import SequenceReader
from headrace._streaming.reads import WINDOW
from headrace_proto.v1 import request_pb2
from support.scripted.wire_samples import (
    FINISHED,
    GENERATING,
    end_record,
    ended,
    ended_info,
    failed_end,
    running_info,
    status_only,
    text_of,
    tokens,
)
from unit.client.streaming.test_reader import IDS, drain, take


class TestStatus:
    """Status is ordered with the tokens."""

    def test_the_first_status_is_no_end_while_tokens_are_unread(self) -> None:
        reader = SequenceReader()
        reader.feed(tokens(IDS))
        reader.feed(ended(IDS))
        assert reader.status() is GenerateStatus.Generating
        assert reader.status() is GenerateStatus.GenerateFinished
        assert take(reader).ids_from_generate == IDS

    def test_after_the_first_read_an_end_comes_with_nothing_unread(self) -> None:
        reader = SequenceReader()
        reader.feed(tokens(IDS, 0, 5))
        take(reader)
        reader.feed(tokens(IDS, 5))
        reader.feed(ended(IDS))
        assert [reader.status() for _ in range(3)] == [GenerateStatus.Generating] * 3
        take(reader)
        assert reader.status() is GenerateStatus.GenerateFinished

    def test_text_of_the_end_is_unread_too(self) -> None:
        reader = SequenceReader()
        take(reader)
        reader.feed(ended([], "…"))
        assert reader.status() is GenerateStatus.Generating
        assert take(reader).text == "…"
        assert reader.status() is GenerateStatus.GenerateFinished

    def test_unread_means_in_the_log_not_arrived(self) -> None:
        reader = SequenceReader()
        reader.observe(ended_info(IDS))
        assert reader.status() is GenerateStatus.Generating
        assert reader.status() is GenerateStatus.GenerateFinished
        take(reader)
        assert reader.status() is GenerateStatus.Generating

    def test_an_end_without_any_token_is_visible_at_once(self) -> None:
        reader = SequenceReader()
        reader.feed(ended([]))
        assert reader.status() is GenerateStatus.GenerateFinished

    def test_late_news_do_not_turn_it_back(self) -> None:
        reader = SequenceReader()
        reader.feed(status_only(GENERATING))
        reader.observe(running_info(0, status=request_pb2.GENERATE_STATUS_INIT))
        assert reader.status() is GenerateStatus.Generating
        reader.feed(ended([]))
        reader.observe(running_info(0))
        assert reader.status() is GenerateStatus.GenerateFinished

    def test_a_terminal_status_waits_for_its_record(self) -> None:
        reader = SequenceReader()
        reader.feed(status_only(FINISHED))
        assert reader.status() is GenerateStatus.Init


class TestWindow:
    """Bounded, and still whole."""

    def test_it_closes_at_4096_unread_tokens_and_opens_when_read(self) -> None:
        ids = list(range(WINDOW + 10))
        reader = SequenceReader()
        reader.feed(tokens(ids, 0, WINDOW - 1))
        assert reader.window_open
        reader.feed(tokens(ids, WINDOW - 1, WINDOW))
        assert not reader.window_open
        take(reader)
        assert reader.window_open

    def test_reading_an_ended_sequence_opens_it_to_the_end(self) -> None:
        ids = list(range(3 * WINDOW))
        reader = SequenceReader()
        reader.feed(tokens(ids, 0, WINDOW))
        reader.observe(ended_info(ids))
        assert not reader.window_open
        with reader.reading():
            assert reader.window_open
            assert reader.fetching
            reader.feed(tokens(ids, WINDOW, 2 * WINDOW))
            assert reader.window_open
            assert reader.fetching
            reader.feed(tokens(ids, 2 * WINDOW))
            assert reader.ready
            assert reader.take().ids_from_generate == ids

    def test_the_length_counts_what_was_produced_not_what_arrived(self) -> None:
        reader = SequenceReader()
        reader.feed(tokens(IDS, 0, 3))
        reader.observe(running_info(9))
        assert reader.generated_length == 9
        reader.observe(running_info(2))
        assert reader.generated_length == 9


class TestFailure:
    """The last columns of the table."""

    def test_an_engine_error_comes_after_the_tokens_each_time(self) -> None:
        reader = SequenceReader(request_id="r1")
        reader.feed(tokens(IDS))
        reader.feed(ended(IDS, record=failed_end(IDS)))
        assert take(reader).ids_from_generate == IDS
        for _ in range(2):
            with pytest.raises(InternalServerError) as caught:
                take(reader)
        assert caught.value.request_id == "r1"

    def test_a_lost_engine_drops_what_had_not_arrived(self) -> None:
        reader = SequenceReader()
        reader.feed(tokens(IDS, 0, 5))
        reader.observe(ended_info(IDS, text="…"))
        reader.fail(EngineLostError("gone."))
        elements = take(reader)
        assert (elements.ids_from_generate, elements.text) == (IDS[:5], text_of(IDS[:5]))
        with pytest.raises(EngineLostError):
            take(reader)
        assert reader.status() is GenerateStatus.InternalError

    def test_a_failure_after_the_end_changes_nothing(self) -> None:
        reader = SequenceReader()
        reader.feed(tokens(IDS))
        reader.feed(ended(IDS))
        reader.fail(EngineLostError("gone."))
        assert len(drain(reader)) == 1
        assert reader.status() is GenerateStatus.GenerateFinished

    def test_an_error_record_without_a_reason_has_its_finish_reason(self) -> None:
        for reason, kind in (
            (request_pb2.FINISH_REASON_ENGINE_LOST, EngineLostError),
            (request_pb2.FINISH_REASON_ERROR, InternalServerError),
        ):
            record = end_record([], status=request_pb2.GENERATE_STATUS_INTERNAL_ERROR, finish_reason=reason)
            reader = SequenceReader()
            reader.feed(ended([], record=record))
            with pytest.raises(kind):
                take(reader)

    def test_an_interruption_is_raised_once_and_after_the_tokens(self) -> None:
        reader = SequenceReader()
        reader.feed(tokens(IDS, 0, 5))
        reader.interrupt(UnavailableError("nobody there."))
        assert take(reader) is not None
        with pytest.raises(UnavailableError):
            take(reader)
        assert take(reader) is None
        assert reader.status() is GenerateStatus.Generating

    def test_an_interruption_that_passed_is_not_raised(self) -> None:
        reader = SequenceReader()
        reader.interrupt(UnavailableError("nobody there."))
        reader.feed(status_only(GENERATING))
        assert take(reader) is None

    @pytest.mark.parametrize("how", ["ended", "told of its end", "failed"])
    def test_an_interruption_of_a_complete_sequence_is_not_raised(self, how: str) -> None:
        """Nobody read during an outage; then the engine was there again, with its answer or without the request."""
        reader = SequenceReader()
        reader.feed(tokens(IDS))
        reader.interrupt(UnavailableError("nobody there."))
        assert take(reader) is not None
        if how == "ended":
            reader.finish(end_record(IDS))
        elif how == "told of its end":
            reader.observe(ended_info(IDS))
        else:
            reader.fail(EngineLostError("the engine is gone."))
            with pytest.raises(EngineLostError):
                take(reader)
            return
        assert take(reader) is None

    def test_release_beats_everything(self) -> None:
        reader = SequenceReader()
        reader.feed(tokens(IDS))
        reader.release()
        with pytest.raises(RequestReleasedError):
            take(reader)
        assert reader.status() is GenerateStatus.Generating

    def test_a_closed_client_still_gives_what_has_arrived(self) -> None:
        reader = SequenceReader()
        reader.feed(tokens(IDS, 0, 5))
        reader.close()
        assert take(reader) is not None
        with pytest.raises(UnavailableError) as caught:
            take(reader)
        assert caught.value.reason == "CLIENT_CLOSED"
