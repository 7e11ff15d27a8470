"""Stops of requests: what is refused, what the core is told, and what becomes of what it computes beyond them."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.errors import InvalidArgument
from headrace_engine.request_types import AcceptedRequest, ResumedSequence
from headrace_engine.result_types import EndRecord, FinishReason, GenerateStatus, StopKind, StopMatch
from headrace_engine.stat_types import CoreStat, Counters
from support.clocks.clock import settle
from support.engine.rig import Rig
from support.models.vocabularies import byte_level

IM_END = 2
OPQ = StopMatch(StopKind.STOP_WORDS, 0, "OPQ")


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(token_id for character in text for token_id in byte_level().encode(character).ids)


async def started(rig: Rig, **config: Any) -> tuple[AcceptedRequest, int]:
    """A request, and the key that the core knows it by."""
    accepted = await rig.start(config=config)
    return accepted, rig.added().key


async def refusal(call: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        await call
    return caught.value


async def end_of(rig: Rig, accepted: AcceptedRequest) -> EndRecord:
    end = (await rig.sequence(accepted.handle)).end
    assert end is not None
    return end


class TestRefusals:
    @pytest.mark.parametrize(
        ("config", "field", "words"),
        [
            ({"stop_words": ("a", "")}, "stop_words[1]", "is empty"),
            ({"stop_words_ids": ((1,), ())}, "stop_words_ids[1]", "is empty"),
            ({"stop_words_ids": ((1, 384),)}, "stop_words_ids[0]", "384"),
            ({"stop_token_ids": (1, -1)}, "stop_token_ids", "-1"),
            ({"stop_words": ("ab" * 20_000, "c" * 30_000)}, "stop_words", "70000 characters in all; allowed: at most"),
            ({"stop_words_ids": ((1,) * 70_000,)}, "stop_words_ids", "70000 ids in all; allowed: at most 65536"),
        ],
    )  # fmt: skip
    async def test_bc026_what_is_no_stop_is_refused_by_name(
        self, rig: Rig, config: dict[str, Any], field: str, words: str
    ) -> None:
        await rig.run()
        error = await refusal(rig.start(config=config))
        assert [violation.field for violation in error.violations] == [f"config.{field}"]
        assert words in error.message

    async def test_the_most_that_is_allowed_is_taken(self, rig: Rig) -> None:
        await rig.run()
        await rig.start(config={"stop_words": ("ab" * 30_000,), "stop_words_ids": ((1,) * 65_536,)})


class TestEnds:
    async def test_bc013_a_stop_word_ends_the_sequence_in_the_core(self, rig: Rig) -> None:
        core = await rig.run()
        accepted, key = await started(rig, stop_words=("OPQ",))
        for token_id in ids_of("LMNOPQRS"):
            core.step({key: token_id})
        assert core.ended == [key]
        end = await end_of(rig, accepted)
        assert (end.finish_reason, end.status) == (FinishReason.STOP_WORD, GenerateStatus.FINISHED)
        assert (end.stop, end.position, end.text) == (OPQ, 6, "")
        assert end.stat.generated_token_length == 6
        elements = await rig.unread(accepted.handle)
        assert elements is not None
        assert (tuple(elements.token_ids), elements.text) == (ids_of("LMNOPQ"), "LMN")
        assert end.checksum == elements.checksum_after

    async def test_bc024_tokens_beyond_a_stop_count_nowhere(self, rig: Rig) -> None:
        core = await rig.run()
        _, key = await started(rig, stop_words=("OPQ",))
        for count, token_id in enumerate(ids_of("OPQRS"), 1):
            core.step({key: token_id}, stat=CoreStat(counters=Counters(generated_tokens=count)))
        (stat,) = rig.engine.engine_stats()
        assert stat.counters.generated_tokens == 3

    async def test_a_stop_id_is_the_core_s_affair_too(self, rig: Rig) -> None:
        core = await rig.run()
        accepted, key = await started(rig, stop_token_ids=(9, 41), min_new_tokens=1)
        assert (rig.added().stop_ids, rig.added().min_new) == ((9, 41), 1)
        core.step({key: 41})
        core.step({key: 41}, ended={key: FinishReason.STOP_WORD})
        assert core.ended == []
        end = await end_of(rig, accepted)
        assert (end.position, end.stop) == (2, StopMatch(StopKind.STOP_TOKEN_IDS, 1, "&"))

    @pytest.mark.parametrize("reason", [FinishReason.EOS, FinishReason.MAX_LENGTH])
    async def test_a_stop_that_comes_with_another_end_wins(self, rig: Rig, reason: FinishReason) -> None:
        core = await rig.run()
        accepted, key = await started(rig, stop_words=("<|im_end|>",))
        core.step({key: IM_END}, ended={key: reason})
        assert core.ended == []
        assert (await end_of(rig, accepted)).stop == StopMatch(StopKind.STOP_WORDS, 0, "<|im_end|>")

    async def test_bc035_text_that_was_kept_back_is_in_the_end_record(self, rig: Rig) -> None:
        core = await rig.run()
        accepted, key = await started(rig, stop_words=("OPQ",))
        core.step({key: ids_of("N")[0]})
        core.step({key: ids_of("O")[0]}, ended={key: FinishReason.MAX_LENGTH})
        end = await end_of(rig, accepted)
        assert (end.text, end.stop) == ("O", None)

    async def test_what_was_kept_back_is_told_of_a_stopped_request(self, rig: Rig) -> None:
        core = await rig.run()
        accepted, key = await started(rig, stop_words=("OPQ",))
        core.step({key: ids_of("O")[0]})
        (sequence,) = await rig.engine.stop_request(accepted.handle, "")
        assert sequence.end is not None
        assert (sequence.end.text, sequence.end.stop) == ("O", None)

    async def test_a_stop_may_not_begin_in_the_prompt(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start(ids_of("xOP"), config={"stop_words": ("OPQ",), "stop_words_ids": (ids_of("OPQ"),)})
        core.step({rig.added().key: ids_of("Q")[0]})
        assert (await rig.sequence(accepted.handle)).end is None

    async def test_others_in_the_step_go_on(self, rig: Rig) -> None:
        core = await rig.run()
        stopped, key = await started(rig, stop_words=("a",))
        going, other = await started(rig)
        core.step({key: ids_of("a")[0], other: ids_of("a")[0]})
        assert (await end_of(rig, stopped)).finish_reason is FinishReason.STOP_WORD
        assert (await rig.sequence(going.handle)).end is None
        assert core.ended == [key]

    async def test_logprobs_and_ids_stay_aligned(self, rig: Rig) -> None:
        core = await rig.run()
        accepted, key = await started(rig, stop_words=("ab",), logprobs=True)
        for token_id, logprob in zip(ids_of("xabc"), (-1.0, -2.0, -3.0, -4.0), strict=True):
            core.step({key: token_id}, logprobs=[logprob])
        elements = await rig.unread(accepted.handle)
        assert elements is not None
        assert elements.token_logprobs == [-1.0, -2.0, -3.0]

    async def test_after_the_loss_of_a_core_a_word_goes_on_where_it_was(self, rig: Rig) -> None:
        core = await rig.run()
        accepted, key = await started(rig, stop_words=("OPQ",))
        for token_id in ids_of("NOP"):
            core.step({key: token_id})
        core.die()
        core.end_close()
        await settle()
        assert rig.added().generated == ids_of("NOP")
        rig.core.step({rig.added().key: ids_of("Q")[0]})
        assert (await end_of(rig, accepted)).stop == OPQ


class TestHandOver:
    async def test_a_stop_is_found_wherever_the_request_is_cut(self, rig: Rig) -> None:
        await rig.run()
        ids, config = ids_of("LMNOPQ"), {"stop_words": ("OPQ",), "lease": None}
        whole = await rig.start(config=config)
        for token_id in ids:
            rig.core.step({rig.added().key: token_id})
        for cut in range(1, len(ids)):
            sequence = ResumedSequence(0, ids[:cut])
            rest = await rig.start(request_id=f"r{cut}", handover=1, resume=(sequence,), config=config)
            for token_id in ids[cut:]:
                rig.core.step({rig.added().key: token_id})
            assert await rig.unread(rest.handle, cut) == await rig.unread(whole.handle, cut)
            end = await end_of(rig, rest)
            assert (end.stop, end.position) == (OPQ, 6)

    @pytest.mark.parametrize("ended", [False, True])
    async def test_what_a_stop_had_ended_is_not_computed(self, rig: Rig, ended: bool) -> None:
        await rig.run()
        sequence = ResumedSequence(0, ids_of("NOPQ"), ended=ended)
        accepted = await rig.start(request_id="r1", handover=1, resume=(sequence,), config={"stop_words": ("OPQ",)})
        end = await end_of(rig, accepted)
        assert (end.finish_reason, end.stop, end.text) == (FinishReason.STOP_WORD, OPQ, "")
        assert rig.core.added == []

    async def test_ids_beyond_a_stop_are_refused(self, rig: Rig) -> None:
        await rig.run()
        start = rig.start(
            request_id="r1",
            handover=1,
            resume=(ResumedSequence(0, ids_of("NOPQR")),),
            config={"stop_words": ("OPQ",)},
        )
        error = await refusal(start)
        assert error.violations[0].field == "resume.sequences[0].delivered_ids"
        assert "goes on after position 3, where 'OPQ' stops the sequence" in error.message

    async def test_a_refused_sequence_is_named_by_its_index(self, rig: Rig) -> None:
        await rig.run()
        resume = (ResumedSequence(1, ids_of("NOPQR")), ResumedSequence(0, ids_of("N")))
        config = {"stop_words": ("OPQ",), "n": 2}
        error = await refusal(rig.start(request_id="r1", handover=1, resume=resume, config=config))
        assert error.violations[0].field == "resume.sequences[0].delivered_ids"
