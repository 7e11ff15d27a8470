"""vSurge's API: generations awaited and iterated, and the life of a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from headrace import Client, InvalidRequestError, ModelState, StateError
from headrace import vsurge as ed
from support.clocks.waiting import eventually, wait_until
from support.servers.books import release_all
from support.servers.processes import Server
from transformers import AutoTokenizer

GREEDY = ed.SamplingParams(max_tokens=12, ignore_eos=True)
PROMPTS = ["Hello river", "Why", "The city"]


def make(tiny: Path, **arguments: Any) -> ed.vSurge:
    model = ed.AutoEasyDeLModelForCausalLM.from_pretrained(str(tiny), num_threads=1)
    return ed.vSurge.create_odriver(model, None, max_concurrent_decodes=2, max_length=8192, **arguments)


@pytest.fixture(scope="module")
def shared(tiny: Path) -> Iterator[ed.vSurge]:
    with make(tiny) as surge:
        surge.start()
        yield surge


@pytest.fixture
def surge(shared: ed.vSurge) -> Iterator[ed.vSurge]:
    """A vSurge in this process. Afterwards all of its requests are released."""
    yield shared
    wait_until(lambda: shared.client.list_requests() == [], "a request is left")
    release_all(shared.client)


async def final(surge: ed.vSurge, *arguments: Any, **more: Any) -> list[ed.ReturnSample]:
    return cast("list[ed.ReturnSample]", await surge.generate(*arguments, **more))


class TestGeneration:
    async def test_awaited_it_is_the_final_samples_in_order(self, surge: ed.vSurge) -> None:
        samples = await final(surge, PROMPTS, GREEDY)
        assert [sample.index for sample in samples] == [0, 1, 2]
        for prompt, sample in zip(PROMPTS, samples, strict=True):
            text = "".join(surge.client.generate(surge.vsurge_name, text=prompt, **GREEDY.build()))
            assert sample.text == sample.accumulated_text == text
            assert sample.num_generated_tokens == len(sample.token_ids) == 12
            rate = sample.num_generated_tokens / sample.time_spent_computing
            assert sample.tokens_per_second == pytest.approx(rate)
            assert sample.finish_reason == "MAX_LENGTH"

    async def test_iterated_it_yields_all_prompts_each_time(self, surge: ed.vSurge) -> None:
        expected = await final(surge, PROMPTS, GREEDY)
        lists = [samples async for samples in surge.generate(PROMPTS, GREEDY, stream=True)]
        for index, last in enumerate(expected):
            texts = [samples[index].text for samples in lists]
            assert {samples[index].index for samples in lists} == {index}
            assert all(later.startswith(text) for text, later in pairwise(texts))
            assert lists[-1][index].token_ids == last.token_ids
        assert {sample.finish_reason for sample in lists[-1]} == {"MAX_LENGTH"}

    async def test_each_way_takes_either_flag(self, surge: ed.vSurge) -> None:
        expected = [sample.text for sample in await final(surge, PROMPTS, GREEDY)]
        once = [samples async for samples in surge.generate(PROMPTS, GREEDY)]
        assert [[sample.text for sample in samples] for samples in once] == [expected]
        pieces = cast(AsyncIterator[list[ed.ReturnSample]], await surge.generate(PROMPTS, GREEDY, stream=True))
        assert [sample.text for sample in [samples async for samples in pieces][-1]] == expected

    def test_one_vsurge_serves_one_event_loop_after_the_other(self, surge: ed.vSurge) -> None:
        first, second = (asyncio.run(final(surge, "Hello", GREEDY)) for _ in range(2))
        assert first[0].token_ids == second[0].token_ids

    async def test_generations_run_side_by_side(self, surge: ed.vSurge) -> None:
        alone = [await final(surge, prompt, GREEDY) for prompt in PROMPTS]
        together = await asyncio.gather(*(final(surge, prompt, GREEDY) for prompt in PROMPTS))
        assert [[each.text for each in samples] for samples in together] == [[s[0].text] for s in alone]

    async def test_each_prompt_may_have_its_own_params(self, surge: ed.vSurge) -> None:
        params = [ed.SamplingParams(max_tokens=length, ignore_eos=True) for length in (2, 5)]
        samples = await final(surge, ["a", "b"], params)
        assert [sample.num_generated_tokens for sample in samples] == [2, 5]
        with pytest.raises(InvalidRequestError, match="one for each of 1 prompts"):
            surge.generate("a", params)
        with pytest.raises(ValueError, match="sampling_params"):
            surge.generate("a", [5])  # type: ignore[list-item]

    async def test_no_prompt_has_no_sample(self, surge: ed.vSurge) -> None:
        assert await final(surge, []) == []
        with pytest.raises(InvalidRequestError, match="prompts = "):
            surge.generate([[1, 2]])  # type: ignore[list-item]

    async def test_a_failure_is_raised_in_their_names(self, surge: ed.vSurge) -> None:
        params = [ed.SamplingParams(max_tokens=200, ignore_eos=True), ed.SamplingParams(suppress_tokens=[9999])]
        with pytest.raises(InvalidRequestError, match=r"^suppress_tokens \(bad_words_ids\)\[0\]"):
            await final(surge, ["a", "b"], params)

    async def test_closing_or_cancelling_stops_the_answers(self, surge: ed.vSurge) -> None:
        endless = ed.SamplingParams(max_tokens=None, ignore_eos=True)
        changes = cast(Any, aiter(surge.generate(PROMPTS, endless, stream=True)))
        first, second = await anext(changes), await anext(changes)
        assert {sample.finish_reason for sample in [*first, *second]} == {None}
        assert sum(len(sample.token_ids) for sample in first) < sum(len(sample.token_ids) for sample in second)
        assert surge.client.list_requests()
        await changes.aclose()
        await eventually(lambda: surge.client.list_requests() == [], "requests were not released")
        task = asyncio.ensure_future(final(surge, PROMPTS, endless))
        await eventually(lambda: bool(surge.client.list_requests()), "no request was started")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not surge.client.list_requests(), "requests were not released")


class TestLife:
    def test_it_goes_from_compiled_to_running_to_nothing(self, tiny: Path, address: str | None) -> None:
        surge = make(tiny, address=address, vsurge_name="s")
        assert surge.client.list_models() == []
        surge.compile()
        assert [info.state for info in surge.client.get_model("s")] == [ModelState.INITIAL]
        with pytest.raises(StateError, match="start_model"):
            asyncio.run(final(surge, "Hi", GREEDY))
        surge.start()
        surge.start()
        assert asyncio.run(final(surge, "Hi", GREEDY))[0].num_generated_tokens == 12
        surge.stop()
        assert surge.client.list_models() == []
        surge.start()
        assert surge.count_tokens("Hello river") == 2
        assert surge.count_tokens([{"role": "user", "content": "Hello"}]) > 2
        surge.stop()
        surge.close()

    def test_closing_it_keeps_what_a_server_runs(self, tiny: Path, gateway: Server) -> None:
        surge = make(tiny, address=gateway.address)
        surge.start()
        surge.close()
        with Client(gateway.address) as client:
            assert [info.state for info in client.list_models()] == [ModelState.RUNNING]

    def test_another_tokenizer_is_warned_of(self, tiny: Path) -> None:
        processor = AutoTokenizer.from_pretrained(str(tiny))
        model = ed.AutoEasyDeLModelForCausalLM.from_pretrained(str(tiny))
        with ed.vSurge.from_model(model, processor, max_length=64) as surge:
            surge.start()
        with ed.vSurge.from_model(model, lambda text: {"input_ids": [1]}, max_length=64) as surge:
            with pytest.warns(UserWarning, match="other ids"):
                surge.start()

    def test_seeded_it_gives_the_same_text_again(self, tiny: Path) -> None:
        params = ed.SamplingParams(max_tokens=12, temperature=1.0, ignore_eos=True)
        with make(tiny, seed=877) as surge:
            surge.start()
            first, second = (asyncio.run(final(surge, "Hi", params))[0].token_ids for _ in range(2))
        assert first == second

    def test_refusals_have_their_names(self, tiny: Path) -> None:
        dims = ed.AutoEasyDeLModelForCausalLM.from_pretrained(str(tiny), sharding_axis_dims=(1, 1, 1, 4, 1))
        surge = ed.vSurge.from_model(dims, None)
        with pytest.raises(InvalidRequestError, match=r"^sharding_axis_dims \(tensor_parallel\) = 4"):
            surge.compile()
        surge.close()

    def test_extra_eos_ids_end_requests(self, surge: ed.vSurge, tiny: Path) -> None:
        token = asyncio.run(final(surge, "Hello", GREEDY))[0].token_ids[2]
        with make(tiny, extra_eos_token_ids=token) as other:
            other.start()
            sample = asyncio.run(final(other, "Hello", GREEDY))[0]
        assert sample.token_ids[-1] == token
        assert sample.finish_reason == "STOP_WORD"
