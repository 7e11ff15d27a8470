"""Hand-over: a request that another engine began goes on here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from zlib import crc32

import pytest
from headrace_engine.engine.requests import resume
from headrace_engine.errors import InvalidArgument, OutOfRange
from headrace_engine.request_types import AcceptedRequest, ResumedSequence
from headrace_engine.result_types import FinishReason, GenerateStatus, RequestStat
from headrace_engine.service.convert.results import REQUEST
from support.clocks.clock import settle
from support.engine.rig import NAME, Rig

DELIVERED = (11, 12, 13)
CHECKSUM = crc32(b"".join(token_id.to_bytes(4, "little") for token_id in DELIVERED))
FIRST = RequestStat(
    arrival_time=1000.0,
    scheduled_time=1001.0,
    first_token_time=1002.0,
    last_token_time=1004.0,
    context_cached_length=2,
    inter_token_p50=0.5,
    inter_token_p99=0.9,
    preemptions=2,
)


async def resumed(rig: Rig, ids: tuple[int, ...] = DELIVERED, **fields: Any) -> AcceptedRequest:
    """A first hand-over with these ids delivered; `sequence` are further fields of the resumed sequence."""
    sequence = ResumedSequence(0, ids, **fields.pop("sequence", {}))
    return await rig.start(**{"request_id": "r1", "handover": 1, "resume": (sequence,), **fields})


class TestLog:
    async def test_the_core_goes_on_after_the_delivered_ids(self, rig: Rig) -> None:
        await rig.run()
        accepted = await resumed(rig, config={"max_new_tokens": 9})
        assert accepted.handover == 1
        assert rig.added().generated == DELIVERED
        assert rig.added().max_new == 9

    async def test_it_begins_where_readers_are(self, rig: Rig) -> None:
        await rig.run()
        accepted = await resumed(rig)
        rig.core.step({rig.added().key: 14})
        (result,) = (await rig.unread(accepted.handle, 3),)
        assert result is not None
        assert (result.position, result.token_ids) == (3, [14])
        assert result.checksum_before == CHECKSUM
        assert result.checksum_after == crc32((14).to_bytes(4, "little"), CHECKSUM)

    @pytest.mark.parametrize("position", [0, 2])
    async def test_below_it_is_out_of_range_with_the_first_position(self, rig: Rig, position: int) -> None:
        await rig.run()
        accepted = await resumed(rig)
        with pytest.raises(OutOfRange, match="allowed: 3 to 3") as caught:
            await rig.unread(accepted.handle, position)
        assert caught.value.metadata["first_position"] == "3"

    async def test_the_view_tells_where_it_begins_and_counts_all(self, rig: Rig) -> None:
        await rig.run()
        accepted = await resumed(rig)
        view = await rig.sequence(accepted.handle)
        assert (view.first_position, view.generated_length, view.checksum) == (3, 3, CHECKSUM)
        assert view.status is GenerateStatus.GENERATING
        key = rig.added().key
        rig.core.step({key: 14}, ended={key: FinishReason.EOS})
        end = (await rig.sequence(accepted.handle)).end
        assert end is not None
        assert end.position == 4
        assert end.stat.generated_token_length == 4

    async def test_text_is_the_same_wherever_it_is_cut(self, rig: Rig) -> None:
        """Characters of several tokens included: whoever read the first part goes on with the second."""
        await rig.run()
        ids = tuple((await rig.engine.tokenize(NAME, "a é€ \N{SLIGHTLY SMILING FACE} z")).token_ids)
        whole = await rig.start(config={"lease": None})
        rig.core.step([(rig.added().key, token_id) for token_id in ids])
        assert len(ids) > 8
        for cut in range(1, len(ids)):
            rest = await resumed(rig, ids[:cut], request_id=f"r{cut}")
            rig.core.step([(rig.added().key, token_id) for token_id in ids[cut:]])
            expected, found = await rig.unread(whole.handle, cut), await rig.unread(rest.handle, cut)
            assert expected is not None
            assert found == expected

    async def test_a_core_that_dies_is_followed_by_one_that_knows_all_ids(self, rig: Rig) -> None:
        await rig.run()
        await resumed(rig)
        rig.core.step({rig.added().key: 14})
        core = rig.core
        core.die()
        core.end_close()
        await settle()
        assert rig.core is not core
        assert rig.added().generated == (*DELIVERED, 14)

    async def test_nothing_delivered_is_a_hand_over_too(self, rig: Rig) -> None:
        await rig.run()
        accepted = await resumed(rig, ())
        view = await rig.sequence(accepted.handle)
        assert (view.first_position, view.status, view.stat.handovers) == (0, GenerateStatus.INIT, 1)


class TestStatistics:
    async def test_first_times_are_kept_and_counts_go_on(self, rig: Rig) -> None:
        await rig.run()
        accepted = await resumed(rig, sequence={"stat": FIRST})
        key = rig.added().key
        rig.core.step(scheduled={key: 3}, preempted=[key])
        rig.clock.advance(5)
        rig.core.step({key: 14})
        stat = (await rig.sequence(accepted.handle)).stat
        assert (stat.arrival_time, stat.scheduled_time, stat.first_token_time) == (1000.0, 1001.0, 1002.0)
        assert (stat.time_in_queue, stat.time_to_first_token) == (1.0, 2.0)
        assert stat.last_token_time == rig.clock.now
        assert (stat.context_cached_length, stat.context_token_length, stat.generated_token_length) == (2, 3, 4)
        assert (stat.inter_token_p50, stat.inter_token_p99) == (0.5, 0.9)
        assert (stat.preemptions, stat.handovers) == (3, 1)

    async def test_until_the_first_token_here_the_last_time_is_the_old_one(self, rig: Rig) -> None:
        await rig.run()
        accepted = await resumed(rig, sequence={"stat": FIRST})
        assert (await rig.sequence(accepted.handle)).stat.last_token_time == 1004.0

    async def test_what_was_reused_here_is_told_with_the_tokens(self, rig: Rig) -> None:
        await rig.run()
        accepted = await resumed(rig, sequence={"stat": FIRST})
        rig.core.step(scheduled={rig.added().key: 3})
        prefix = (await rig.sequence(accepted.handle)).prefix
        assert prefix is not None
        assert prefix.prefix_len_gpu == 3

    async def test_hand_overs_are_counted_from_what_was_known(self, rig: Rig) -> None:
        await rig.run()
        fourth = await resumed(rig, handover=4)
        second = await resumed(rig, handover=5, sequence={"stat": RequestStat(handovers=1)})
        assert (await rig.sequence(fourth.handle)).stat.handovers == 4
        assert (await rig.sequence(second.handle)).stat.handovers == 2


class TestEnded:
    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            ({"eos_token_id": (13,)}, FinishReason.EOS),
            ({"max_new_tokens": 3}, FinishReason.MAX_LENGTH),
            ({}, FinishReason.STOPPED),
        ],
    )
    async def test_it_is_not_run_again(self, rig: Rig, config: dict[str, Any], reason: FinishReason) -> None:
        await rig.run()
        stat = RequestStat(finished_time=1005.0)
        accepted = await resumed(rig, config=config, sequence={"ended": True, "stat": stat})
        assert not rig.core.added
        (result,) = await rig.read_all(accepted.handle, 3)
        assert result.elements is None
        assert result.end is not None
        assert (result.end.finish_reason, result.end.position, result.end.checksum) == (reason, 3, CHECKSUM)
        assert result.end.stat.finished_time == 1005.0

    @pytest.mark.parametrize("finished", [1005.0, 2e11])
    async def test_its_lease_runs_from_now_whatever_the_clock_elsewhere(self, rig: Rig, finished: float) -> None:
        await rig.run()
        await resumed(rig, sequence={"ended": True, "stat": RequestStat(finished_time=finished)})
        rig.pass_time(599)
        assert rig.engine.list_requests("")[0]
        rig.pass_time(1)
        assert not rig.engine.list_requests("")[0]

    async def test_one_with_all_tokens_but_no_end_ends_in_the_core(self, rig: Rig) -> None:
        await rig.run()
        await resumed(rig, config={"max_new_tokens": 3})
        await resumed(rig, handover=2, config={"eos_token_id": (13,)})
        assert [command.generated for command in rig.core.added] == [DELIVERED, DELIVERED]

    async def test_one_that_ended_unseen_elsewhere_ends_only_here(self, rig: Rig) -> None:
        await rig.run()
        accepted = await resumed(rig, sequence={"stat": RequestStat(finished_time=1005.0)})
        assert (await rig.sequence(accepted.handle)).stat.finished_time is None
        rig.core.step(ended={rig.added().key: FinishReason.EOS})
        assert (await rig.sequence(accepted.handle)).stat.finished_time == rig.clock.now


class TestKeys:
    async def test_each_hand_over_is_a_start_of_its_own(self, rig: Rig) -> None:
        await rig.run()
        zero = await rig.start(request_id="r1")
        first, again, second = await resumed(rig), await resumed(rig, (11,)), await resumed(rig, handover=2)
        assert again.handle == first.handle
        assert (first.joined, again.joined) == (False, True)
        assert len({zero.handle, first.handle, second.handle}) == 3
        view, _ = await rig.engine.get_request(request_id="r1")
        assert view.request.handle == second.handle


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "field", "text"),
        [
            ({"handover": 0}, "handover", "at least 1"),
            ({"resume": None}, "resume", "handover = 1 needs it"),
            ({"resume": ()}, "resume.sequences", "no sequence"),
            ({"resume": (ResumedSequence(1),)}, "resume.sequences[0].index", "= 1 is out of range"),
            ({"resume": (ResumedSequence(0), ResumedSequence(0))}, "resume.sequences", r"\[0, 0\]"),
            ({"request_id": ""}, "request_id", "empty"),
        ],
    )
    async def test_half_a_hand_over(self, rig: Rig, fields: dict[str, Any], field: str, text: str) -> None:
        await rig.run()
        with pytest.raises(InvalidArgument, match=text) as caught:
            await resumed(rig, **fields)
        assert (caught.value.reason, caught.value.violations[0].field) == ("INVALID_FIELD", field)

    @pytest.mark.parametrize(
        ("ids", "text"),
        [
            ((11, 384), "384"),
            ((11, 12, 13, 14, 15), "5 ids; the request generates at most 4"),
            ((11, 7, 13), "goes on after id 7 at position 1"),
        ],
    )
    async def test_ids_that_no_engine_can_have_delivered(self, rig: Rig, ids: tuple[int, ...], text: str) -> None:
        await rig.run()
        with pytest.raises(InvalidArgument, match=text) as caught:
            await resumed(rig, ids, config={"max_new_tokens": 4, "eos_token_id": (7,)})
        assert caught.value.violations[0].field == "resume.sequences[0].delivered_ids"
        assert not rig.core.added
        assert not rig.engine.list_requests("")[0]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("handovers", 2**32 - 1),
            ("preemptions", 2**31),
            ("arrival_time", 2.0**63),
            ("arrival_time", -1.0),
            ("scheduled_time", 253402300800.0),
            ("first_token_time", -(2.0**63)),
            ("last_token_time", 2.0**63),
            ("finished_time", 2.0**63),
            ("time_in_queue", -1.0),
            ("time_to_first_token", 2.0**63),
            ("inter_token_p50", 2.0**63),
            ("inter_token_p99", -0.001),
            ("context_tps", float("nan")),
            ("generate_tps", float("inf")),
            ("context_cached_length", 4),
        ],
    )
    async def test_statistics_that_no_engine_can_have_told(self, rig: Rig, name: str, value: float) -> None:
        await rig.run()
        with pytest.raises(InvalidArgument, match=str(value).replace("+", r"\+")) as caught:
            await resumed(rig, sequence={"stat": RequestStat(**{name: value})})
        assert caught.value.violations[0].field == f"resume.sequences[0].stat.{name}"
        assert not rig.engine.list_requests("")[0]

    async def test_every_number_of_the_statistics_has_a_range(self) -> None:
        assert set(resume._STAT) == {field.name for field in fields(RequestStat)}

    async def test_the_largest_statistics_can_be_told_on(self, rig: Rig) -> None:
        await rig.run()
        largest = {name: field.high for name, field in resume._STAT.items() if field.high is not None}
        stat = RequestStat(**{**largest, "context_cached_length": 3})  # type: ignore[arg-type]
        accepted = await resumed(rig, sequence={"stat": stat})
        rig.core.step(preempted=[rig.added().key])
        view, _ = await rig.engine.get_request(handle=accepted.handle)
        assert REQUEST.to_wire(view).sequences[0].stat.handovers == 2**31
