"""best_of above n: candidates that nobody reads, of which the best take the places that readers know."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from headrace_engine.config import Lease
from headrace_engine.engine.results.best_of import cost
from headrace_engine.engine.results.budget import log_bytes
from headrace_engine.errors import InvalidArgument, ResourceExhausted
from headrace_engine.request_types import AcceptedRequest, ResumedSequence
from headrace_engine.result_types import FinishReason, GenerateStatus, RequestStat
from hypothesis import given
from hypothesis import strategies as st
from support.clocks.clock import settle
from support.engine.rig import NAME, Rig
from support.scripted.core import ScriptedCore

EOS = FinishReason.EOS
TWO_OF_THREE = {"n": 2, "best_of": 3, "max_new_tokens": 4}


async def begun(rig: Rig, config: dict[str, Any], **fields: Any) -> tuple[AcceptedRequest, list[int]]:
    """A request and the keys of its candidates."""
    before = len(rig.core.added)
    accepted = await rig.start(config=config, **fields)
    return accepted, [command.key for command in rig.core.added[before:]]


def bring(core: ScriptedCore, key: int, *tokens: tuple[int, float], reason: FinishReason = EOS) -> None:
    """All tokens of a candidate with their log-probabilities, and its end with the last."""
    for place, (token_id, logprob) in enumerate(tokens, 1):
        core.step({key: token_id}, logprobs=[logprob], ended={key: reason} if place == len(tokens) else None)


async def ids_of(rig: Rig, handle: str, index: int) -> list[int]:
    _, elements = await rig.engine.get_request(handle=handle, index=index, from_position=0)
    return elements.token_ids if elements else []


def taken(rig: Rig) -> int:
    return rig.engine._registry.budget.taken(("", NAME))


async def test_all_candidates_are_one_group_with_their_ranking(rig: Rig) -> None:
    core = await rig.run()
    _, keys = await begun(rig, TWO_OF_THREE)
    assert [command.index for command in core.added] == [0, 1, 2]
    assert {command.group for command in core.added} == {keys[0]}
    assert all(command.sampling.logprobs for command in core.added)


async def test_nothing_can_be_read_before_all_have_ended(rig: Rig) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, TWO_OF_THREE)
    for key in keys[:2]:
        bring(core, key, (5, -1.0), (6, -1.0))
    core.step({keys[2]: 9}, logprobs=[-0.5])
    view, elements = await rig.engine.get_request(handle=accepted.handle, from_position=0)
    assert (view.sequences, elements) == ((), None)
    (listed,), _ = rig.engine.list_requests("", running_only=True)
    assert listed.sequences == ()


async def test_the_best_take_the_first_places_in_order_of_their_rank(rig: Rig) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, TWO_OF_THREE)
    reads = [rig.engine.read(accepted.handle, index, 0, "") for index in range(2)]
    bring(core, keys[1], (20, -0.5), (21, -0.7))
    bring(core, keys[2], (30, -0.1), reason=FinishReason.MAX_LENGTH)
    bring(core, keys[0], (10, -3.0), (11, -3.0))
    found = [[result async for result in read] for read in reads]
    tokens = [[token for one in results if one.elements for token in one.elements.token_ids] for results in found]
    assert tokens == [[30], [20, 21]]
    ends = [results[-1].end for results in found]
    assert [end.finish_reason for end in ends if end] == [FinishReason.MAX_LENGTH, EOS]
    view, _ = await rig.engine.get_request(handle=accepted.handle)
    assert [one.index for one in view.sequences] == [0, 1]
    assert [one.stat.generated_token_length for one in view.sequences] == [1, 2]
    assert [one.checksum for one in view.sequences] == [end.checksum for end in ends if end]


@pytest.mark.parametrize(
    ("penalty", "best"),
    [
        (0.0, [30]),
        (1.0, [20, 21, 22, 23]),
        (None, [20, 21, 22, 23]),
        (2.0, [20, 21, 22, 23]),
        (0.5, [30]),
        (-1.0, [30]),
    ],
)
async def test_the_length_counts_by_its_penalty(rig: Rig, penalty: float | None, best: list[int]) -> None:
    """Sums of -0.9 for one token and -2.4 for four: 0.9 against 1.2 at half a power, and 0.6 at a whole one."""
    core = await rig.run()
    accepted, keys = await begun(rig, {"best_of": 2, "max_new_tokens": 4, "length_penalty": penalty})
    bring(core, keys[0], (30, -0.9))
    bring(core, keys[1], *((20 + place, -0.6) for place in range(4)), reason=FinishReason.MAX_LENGTH)
    assert await ids_of(rig, accepted.handle, 0) == best


@given(st.lists(st.tuples(st.integers(-4000, 0), st.integers(1, 50)), min_size=2, max_size=8), st.integers(-3, 3))
def test_costs_order_as_the_score_says(candidates: list[tuple[int, int]], power: int) -> None:
    """Against exact fractions, where they differ by more than floats round."""
    scores = [Fraction(total, 1000) / Fraction(length) ** power for total, length in candidates]
    costs = [cost(total / 1000, length, power) for total, length in candidates]
    for score, own in zip(scores, costs, strict=True):
        for other, others in zip(scores, costs, strict=True):
            if float(score) > float(other) * (1 - 1e-9):
                assert own < others


def test_costs_are_defined_for_every_penalty_and_sum() -> None:
    assert cost(-1.0, 10, 1e300) < cost(-1.0, 9, 1e300)
    assert cost(-1.0, 10, -1e300) > cost(-1.0, 9, -1e300)
    assert cost(0.0, 3, 1.0) < cost(-1e-30, 3, 1.0) < cost(-1e30, 3, 1.0) < cost(0.0, 0, 1.0)


async def test_equal_candidates_keep_their_order(rig: Rig) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, TWO_OF_THREE)
    for key in reversed(keys):
        bring(core, key, (key, -1.0))
    assert [await ids_of(rig, accepted.handle, index) for index in range(2)] == [[keys[0]], [keys[1]]]


async def test_log_probabilities_are_told_where_they_were_asked_for(rig: Rig) -> None:
    core = await rig.run()
    for asked in (True, False):
        accepted, keys = await begun(rig, {"best_of": 2, "logprobs": asked})
        for key in keys:
            bring(core, key, (7, -0.5), (8, -0.25))
        elements = await rig.unread(accepted.handle)
        assert elements is not None
        assert elements.token_logprobs == ([-0.5, -0.25] if asked else None)


async def test_stopping_ends_all_and_what_ended_by_itself_comes_first(rig: Rig) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, TWO_OF_THREE)
    core.step({keys[0]: 10, keys[1]: 20, keys[2]: 30}, logprobs=[-0.1, -9.0, -0.2])
    core.step(ended={keys[1]: EOS})
    sequences = await rig.engine.stop_request(accepted.handle, "")
    assert [one.end.finish_reason for one in sequences if one.end] == [EOS, FinishReason.STOPPED]
    assert [await ids_of(rig, accepted.handle, index) for index in range(2)] == [[20], [10]]
    assert sorted(core.ended) == [keys[0], keys[2]]


async def test_one_without_tokens_comes_after_those_with_some(rig: Rig) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, {"best_of": 2})
    core.step({keys[1]: 20}, logprobs=[-50.0])
    await rig.engine.stop_request(accepted.handle, "")
    assert await ids_of(rig, accepted.handle, 0) == [20]


async def test_a_failed_candidate_is_the_last(rig: Rig) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, {"n": 2, "best_of": 3})
    core.step({keys[0]: 10}, logprobs=[-0.1], ended={keys[0]: FinishReason.ERROR})
    core.step({keys[1]: 20}, logprobs=[-7.0], ended={keys[1]: FinishReason.INTERRUPTED})
    bring(core, keys[2], (30, -8.0))
    view, _ = await rig.engine.get_request(handle=accepted.handle)
    assert [one.status for one in view.sequences] == [GenerateStatus.FINISHED, GenerateStatus.INTERRUPTED]


async def test_a_deadline_ends_all_candidates(rig: Rig) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, {"best_of": 2, "deadline": 5.0})
    core.step(dict.fromkeys(keys, 9), logprobs=[-2.0, -1.0])
    rig.pass_time(6.0)
    view, _ = await rig.engine.get_request(handle=accepted.handle)
    assert [one.end.finish_reason for one in view.sequences if one.end] == [FinishReason.DEADLINE]
    assert await ids_of(rig, accepted.handle, 0) == [9]


async def test_candidates_go_on_in_another_core(rig: Rig) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, {"best_of": 2, "max_new_tokens": 3})
    core.step(dict(zip(keys, (10, 20), strict=True)), logprobs=[-1.0, -2.0])
    bring(core, keys[0], (11, -1.0))
    core.die()
    await settle()
    (again,) = rig.core.added
    assert (again.index, again.generated) == (1, (20,))
    rig.core.step({again.key: 21}, logprobs=[-0.1], ended={again.key: EOS})
    assert await ids_of(rig, accepted.handle, 0) == [10, 11]


@pytest.mark.parametrize("reason", [FinishReason.DRAINED, FinishReason.ENGINE_LOST])
async def test_nothing_of_candidates_that_go_elsewhere_is_shown(rig: Rig, reason: FinishReason) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, TWO_OF_THREE)
    core.step(dict.fromkeys(keys, 9), logprobs=[-1.0, -2.0, -3.0])
    core.step(ended=dict.fromkeys(keys, reason))
    view, _ = await rig.engine.get_request(handle=accepted.handle)
    assert [(one.end.finish_reason, one.end.position) for one in view.sequences if one.end] == [(reason, 0)] * 2
    assert [await ids_of(rig, accepted.handle, index) for index in range(2)] == [[], []]


async def test_room_is_reserved_for_all_and_kept_for_the_best(rig: Rig) -> None:
    core = await rig.run(max_result_bytes=4 * log_bytes(4))
    accepted, keys = await begun(rig, TWO_OF_THREE)
    assert taken(rig) == 3 * log_bytes(4)
    with pytest.raises(ResourceExhausted, match="3 sequences of 4 tokens"):
        await rig.start(config=TWO_OF_THREE)
    for key in keys:
        bring(core, key, (7, -0.5))
    assert taken(rig) == 2 * log_bytes(1)
    await rig.engine.release_request(accepted.handle, "")
    assert taken(rig) == 0


async def test_release_ends_candidates_that_run(rig: Rig) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, TWO_OF_THREE)
    bring(core, keys[0], (7, -0.5))
    await rig.engine.release_request(accepted.handle, "")
    assert (taken(rig), core.ended) == (0, keys[1:])


async def test_it_ends_and_its_lease_begins_when_the_best_are_chosen(rig: Rig) -> None:
    core = await rig.run()
    accepted, keys = await begun(rig, {"best_of": 2, "lease": Lease(running=100.0, ended=50.0)})
    bring(core, keys[0], (7, -0.5))
    rig.pass_time(30.0)
    bring(core, keys[1], (8, -9.0))
    (view,), _ = rig.engine.list_requests("")
    (sequence,) = view.sequences
    assert sequence.stat.finished_time == rig.clock()
    assert sequence.stat.last_token_time == rig.clock() - 30.0
    assert view.lease_expires == rig.clock() + 50.0
    assert accepted.handle == view.request.handle


class TestHandOver:
    async def start(self, rig: Rig, *resume: ResumedSequence, **config: Any) -> tuple[str, list[int]]:
        accepted, keys = await begun(rig, config, request_id="r", handover=1, resume=resume)
        return accepted.handle, keys

    async def test_candidates_start_again_and_readers_go_on(self, rig: Rig) -> None:
        core = await rig.run()
        stat = RequestStat(arrival_time=5.0, first_token_time=6.0)
        handle, keys = await self.start(rig, ResumedSequence(0, (10, 11), stat), best_of=2)
        assert [command.generated for command in core.added] == [(), ()]
        for key, logprob in zip(keys, (-0.1, -0.2), strict=True):
            bring(core, key, (10, logprob), (11, logprob), (12, logprob))
        elements = await rig.unread(handle, 2)
        assert elements is not None
        assert elements.token_ids == [12]
        sequence = await rig.sequence(handle)
        assert (sequence.first_position, sequence.generated_length) == (2, 3)
        assert (sequence.stat.arrival_time, sequence.stat.first_token_time, sequence.stat.handovers) == (5.0, 6.0, 1)

    @pytest.mark.parametrize("tokens", [(10, 19, 12), (10,)])
    async def test_another_choice_than_the_one_delivered_is_an_error(self, rig: Rig, tokens: tuple[int, ...]) -> None:
        core = await rig.run()
        handle, keys = await self.start(rig, ResumedSequence(0, (10, 11)), best_of=2)
        for key in keys:
            bring(core, key, *((token, -0.1) for token in tokens))
        end = (await rig.sequence(handle)).end
        assert end is not None
        assert (end.finish_reason, end.position) == (FinishReason.ERROR, 2)
        assert "2 tokens that another engine delivered" in str(end.error)

    async def test_one_that_had_ended_stays_so(self, rig: Rig) -> None:
        core = await rig.run()
        handle, keys = await self.start(rig, ResumedSequence(0, (10,), ended=True), **TWO_OF_THREE)
        for key, token in zip(keys, (10, 20, 30), strict=True):
            bring(core, key, (token, -0.1 * token))
        view, _ = await rig.engine.get_request(handle=handle)
        assert [one.generated_length for one in view.sequences] == [1, 1]
        assert await ids_of(rig, handle, 1) == [20]

    async def test_where_all_had_ended_nothing_is_computed(self, rig: Rig) -> None:
        core = await rig.run()
        handle, _ = await self.start(rig, ResumedSequence(0, (10,), ended=True), best_of=2)
        assert core.added == []
        assert (await rig.sequence(handle)).status is GenerateStatus.FINISHED
        await rig.engine.release_request(handle, "")
        assert taken(rig) == 0


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"n": 3, "best_of": 2}, "config.best_of"),
        ({"length_penalty": 0.5}, "config.length_penalty"),
        ({"n": 2, "best_of": 2, "length_penalty": 0.5}, "config.length_penalty"),
        ({"best_of": 2, "length_penalty": math.inf}, "config.length_penalty"),
    ],
)
async def test_what_ranks_nothing_is_refused(rig: Rig, config: dict[str, Any], field: str) -> None:
    await rig.run()
    with pytest.raises(InvalidArgument) as caught:
        await rig.start(config=config)
    assert [violation.field for violation in caught.value.violations] == [field]


async def test_equal_candidates_are_suspicious(rig: Rig) -> None:
    await rig.run()
    accepted = await rig.start(config={"best_of": 3, "do_sample": False})
    (warning,) = accepted.warnings
    assert warning.field == "config.best_of"
    assert "3 generates identical candidates" in warning.message
