"""Statistics, who answers, and the tokenizer's calls."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Any

import pytest
from headrace_engine.chat_types import Chat, ChatMessage
from headrace_engine.errors import FailedPrecondition, InvalidArgument, NotFound
from headrace_engine.model_types import ModelState
from headrace_engine.result_types import FinishReason
from headrace_engine.stat_types import CoreStat, Counters, EngineStat, PoolStat
from support.clocks.clock import settle
from support.engine.rig import NAME, Rig
from support.models.vocabularies import byte_level
from support.scripted.core import READY

IDENTITY = {"model_name", "state", "engine", "instance_id", "core_epoch", "time"}


def only(rig: Rig) -> EngineStat:
    (stat,) = rig.engine.engine_stats()
    return stat


def figures(stat: EngineStat) -> dict[str, Any]:
    nested = {name: value for name, value in asdict(stat).items() if name not in IDENTITY}
    groups = [value for value in nested.values() if isinstance(value, dict)]
    flat = {name: value for name, value in nested.items() if not isinstance(value, dict)}
    return {name: value for group in (flat, *groups) for name, value in group.items()}


class TestEngineStat:
    async def test_says_who_and_when(self, rig: Rig) -> None:
        await rig.run()
        stat = only(rig)
        assert (stat.model_name, stat.state, stat.engine) == (NAME, ModelState.RUNNING, "e1")
        assert (stat.instance_id, stat.core_epoch, stat.time) == (rig.engine.instance_id, 1, rig.clock())

    async def test_before_the_first_step_the_whole_pool_is_free(self, rig: Rig) -> None:
        await rig.run()
        stat = only(rig)
        assert stat.pool == PoolStat(blocks_total=128, blocks_free=128)
        assert (stat.tokens_total, stat.tokens_free) == (128 * 16, 128 * 16)
        assert (stat.pool_bytes_total, stat.pool_bytes_used) == (1000 + 200 + 3000, 1000 + 200)
        assert (stat.counters.prefix_cache_hit_rate, stat.counters.prefix_cache_miss_rate) == (None, None)
        assert (stat.rates.step_time_p50, stat.rates.step_time_p99, stat.rates.batch_size) == (None, None, 0)

    async def test_follows_the_steps(self, rig: Rig) -> None:
        core = await rig.run()
        for _ in range(3):
            await rig.start()
        first, second, _ = (added.key for added in core.added)
        gauges = PoolStat(blocks_total=128, blocks_used=16, blocks_cached=48, blocks_free=64)
        counters = Counters(30, 0, 10, prefilled_tokens=6, generated_tokens=2)
        core.step(
            {first: 41, second: 42},
            scheduled={first: 0, second: 0},
            stat=CoreStat(pool=gauges, counters=counters),
            step_time=0.25,
        )
        stat = only(rig)
        assert (stat.running, stat.waiting) == (2, 1)
        assert stat.pool == gauges
        assert (stat.tokens_total, stat.tokens_free) == (2048, (48 + 64) * 16)
        assert stat.pool_bytes_used == 1000 + 200 + 1500
        assert (stat.counters.prefix_cache_hit_tokens, stat.counters.prefix_cache_miss_tokens) == (30, 10)
        assert (stat.counters.prefix_cache_hit_rate, stat.counters.prefix_cache_miss_rate) == (0.75, 0.25)
        assert (stat.counters.generated_tokens, stat.counters.prefilled_tokens) == (2, 6)
        assert (stat.rates.generated_tps, stat.rates.prefilled_tps) == (0.2, 0.6)
        assert (stat.rates.step_time_p50, stat.rates.step_time_p99, stat.rates.batch_size) == (0.25, 0.25, 2)

    async def test_all_figures_are_zero_where_the_model_does_not_run(self, rig: Rig) -> None:
        await rig.install()
        empty = figures(only(rig))
        assert not any(empty.values())
        await rig.engine.start_model(NAME)
        await rig.start()
        rig.core.step({rig.added().key: 41}, stat=CoreStat(counters=Counters(generated_tokens=1)))
        await rig.engine.drain(0)
        await rig.engine.stop_model(NAME)
        assert (only(rig).state, figures(only(rig))) == (ModelState.STOPPED, empty)
        assert only(rig).core_epoch == 1

    async def test_are_shown_while_requests_drain(self, rig: Rig) -> None:
        core = await rig.run()
        await rig.start()
        stop = asyncio.create_task(rig.engine.stop_model(NAME))
        await settle()
        stat = only(rig)
        assert (stat.state, stat.waiting, stat.pool.blocks_total) == (ModelState.STOPPING, 1, 128)
        core.step(ended={rig.added().key: FinishReason.EOS})
        await stop

    async def test_counters_survive_a_core_restart_and_gauges_do_not(self, rig: Rig) -> None:
        core = await rig.run()
        await rig.start()
        key = rig.added().key
        core.step(
            {key: 41},
            ended={key: FinishReason.EOS},
            stat=CoreStat(pool=PoolStat(blocks_total=128, blocks_used=128), counters=Counters(generated_tokens=5)),
        )
        await rig.engine.stop_model(NAME)
        await rig.engine.start_model(NAME)
        stat = only(rig)
        assert (stat.core_epoch, stat.counters.generated_tokens, stat.pool.blocks_used) == (2, 5, 0)
        pool = PoolStat(blocks_total=128, blocks_free=128)
        rig.core.step(stat=CoreStat(pool=pool, counters=Counters(generated_tokens=2)))
        assert only(rig).counters.generated_tokens == 7

    async def test_a_model_in_the_place_of_another_goes_on_counting(self, rig: Rig) -> None:
        """Within one start of the engine a higher epoch means another core, whatever became of the model."""
        core = await rig.run()
        core.step(stat=CoreStat(counters=Counters(generated_tokens=5)))
        await rig.launcher.fail_restart()
        await rig.run()
        assert (only(rig).core_epoch, only(rig).counters.generated_tokens) == (3, 5)
        await rig.engine.stop_model(NAME)
        await rig.engine.release_model(NAME)
        await rig.run(max_batch=1)
        assert only(rig).core_epoch == 4

    async def test_of_one_model_or_of_all_by_name(self, rig: Rig) -> None:
        await rig.install("b")
        await rig.install("a")
        assert [stat.model_name for stat in rig.engine.engine_stats()] == ["a", "b"]
        assert [stat.model_name for stat in rig.engine.engine_stats("b")] == ["b"]
        with pytest.raises(NotFound):
            rig.engine.engine_stats("c")


class TestRequestStat:
    async def test_is_told_while_running_and_final_in_the_end_record(self, rig: Rig) -> None:
        core = await rig.run()
        arrival = rig.clock()
        accepted = await rig.start((5,) * 10)
        key = rig.added().key
        rig.clock.advance(1.5)
        core.step({key: 41}, scheduled={key: 4}, step_time=0.5)
        running = (await rig.sequence(accepted.handle)).stat
        assert (running.time_in_queue, running.time_to_first_token, running.finished_time) == (1.0, 1.5, None)
        rig.clock.advance(0.25)
        core.step({key: 42}, preempted=[key])
        rig.clock.advance(0.25)
        core.step({key: 43}, ended={key: FinishReason.EOS})
        rig.clock.advance(60)
        view = await rig.sequence(accepted.handle)
        assert view.end is not None
        stat = view.stat
        assert stat == view.end.stat
        assert (stat.arrival_time, stat.scheduled_time, stat.first_token_time) == (arrival, arrival + 1, arrival + 1.5)
        assert (stat.last_token_time, stat.finished_time) == (arrival + 2, arrival + 2)
        assert (stat.context_token_length, stat.generated_token_length, stat.context_cached_length) == (10, 3, 4)
        assert (stat.context_tps, stat.generate_tps) == (6 / 0.5, 2 / 0.5)
        assert (stat.inter_token_p50, stat.inter_token_p99) == (0.25, 0.25)
        assert (stat.preemptions, stat.handovers) == (1, 0)


class TestServerInfo:
    async def test_says_who_answers(self, rig: Rig) -> None:
        start = rig.clock()
        rig.new_engine(build="1.2.3+abc")
        rig.clock.advance(5)
        info = rig.engine.server_info()
        assert (info.name, info.instance_id) == ("e1", rig.engine.instance_id)
        assert (info.api_version, info.build, info.start_time) == ("1.0", "1.2.3+abc", start)
        assert (info.devices, info.core_epoch, info.draining) == ((), 0, False)
        assert len(set(info.features)) == len(info.features) > 0

    async def test_each_start_has_an_instance_of_its_own(self, rig: Rig) -> None:
        first = rig.engine.instance_id
        assert rig.new_engine().instance_id != first

    async def test_names_the_devices_of_all_models_once(self, rig: Rig) -> None:
        await rig.run("a")
        await rig.run("b")
        rig.launcher.ready_at_once = replace(READY, devices=("CPU test", "CPU other"))
        await rig.run("c")
        info = rig.engine.server_info()
        assert (info.devices, info.core_epoch) == (("CPU test", "CPU other"), 1)

    async def test_says_that_it_goes_away(self, rig: Rig) -> None:
        await rig.engine.drain(0)
        assert rig.engine.server_info().draining


class TestTokenizer:
    async def test_tokenises_as_a_request_would(self, rig: Rig) -> None:
        await rig.run()
        for prompt in ("Hello world", Chat((ChatMessage("user", "Hello"),))):
            found = await rig.engine.tokenize(NAME, prompt)
            await rig.start(prompt)
            assert tuple(found.token_ids) == rig.added().prompt
        assert found.rendered_text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"

    async def test_an_installed_model_has_its_tokenizer(self, rig: Rig) -> None:
        await rig.install()
        assert (await rig.engine.tokenize(NAME, "Hello")).token_ids == byte_level().encode("Hello").ids

    async def test_a_failed_model_has_none(self, rig: Rig) -> None:
        await rig.run()
        await rig.launcher.fail_restart()
        with pytest.raises(FailedPrecondition) as caught:
            await rig.engine.tokenize(NAME, "Hello")
        assert (caught.value.reason, caught.value.state) == ("MODEL_NOT_RUNNING", ModelState.FAILED)

    async def test_detokenises_with_and_without_special_tokens(self, rig: Rig) -> None:
        await rig.install()
        ids = [1, *byte_level().encode("Hello").ids, 2]
        assert (await rig.engine.detokenize(NAME, ids, skip_special_tokens=True)).text == "Hello"
        found = await rig.engine.detokenize(NAME, ids, skip_special_tokens=False)
        assert found.text == "<|im_start|>Hello<|im_end|>"
        assert b"".join(found.pieces).decode() == found.text

    @pytest.mark.parametrize("wrong", [-1, 384])
    async def test_what_is_no_id_is_refused(self, rig: Rig, wrong: int) -> None:
        await rig.install()
        with pytest.raises(InvalidArgument, match=f"holds {wrong}") as caught:
            await rig.engine.detokenize(NAME, [5, wrong], skip_special_tokens=True)
        assert caught.value.violations[0].field == "token_ids"

    async def test_an_unknown_model_is_not_found(self, rig: Rig) -> None:
        with pytest.raises(NotFound):
            await rig.engine.tokenize("none", "Hello")
