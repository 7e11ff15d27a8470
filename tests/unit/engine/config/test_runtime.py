"""From the runtime config that was sent to the one that holds, and to the plan of a core."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.config import (
    ActivationQuant,
    ComputeDtype,
    ComputeUnit,
    KvCacheMode,
    ModelFormat,
    RopeScaling,
    RopeScalingType,
    RuntimeConfig,
    WeightQuant,
)
from headrace_engine.engine.config import backend_fields
from headrace_engine.engine.config.options import STREAM_INTERVAL, EngineOptions
from headrace_engine.engine.config.runtime import (
    check_config,
    core_plan,
    effective_config,
    ready_config,
    ready_effective,
)
from headrace_engine.errors import InvalidArgument
from headrace_engine.ipc.messages import CoreReady
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.model_types import EffectiveConfig
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.spec import DecoderSpec, RopeSpec

PLAIN = RuntimeConfig(model_name="smol", model_path="/models/smol")
SPEC = DecoderSpec("LlamaForCausalLM", 384, 64, 2, 4, 2, 16, 128, 1e-6, RopeSpec(1e4, 16), 512)
FILES = ModelFiles(ModelFormat.HF, Path("/models/smol"), SPEC, "{}", {}, {}, "r1", Path("/models/smol"))


def refused(**values: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        check_config(replace(PLAIN, **values))
    return caught.value


class TestCheck:
    @pytest.mark.parametrize("name", ["smol", "a", "Org/Model-7B:q4_1", "x" * 128, ".", "0"])
    def test_a_name_of_the_allowed_characters_is_one(self, name: str) -> None:
        check_config(replace(PLAIN, model_name=name))

    @pytest.mark.parametrize("name", ["", "a b", "ü", "a\n", "x" * 129, "a;b", "a\0"])
    def test_another_is_refused(self, name: str) -> None:
        error = refused(model_name=name)
        assert error.violations[0].field == "config.model_name"
        assert repr(name) in error.message

    def test_the_path_is_required(self) -> None:
        assert refused(model_path="").violations[0].field == "config.model_path"

    @pytest.mark.parametrize("size", [12, 24, 100])
    def test_a_block_size_is_a_power_of_two(self, size: int) -> None:
        error = refused(block_size=size)
        assert f"block_size = {size} is not a power of two; allowed: 8 to 128" in error.message

    @pytest.mark.parametrize("size", [8, 16, 32, 64, 128])
    def test_every_power_in_range_is_allowed(self, size: int) -> None:
        check_config(replace(PLAIN, block_size=size), "torch")

    @pytest.mark.parametrize(
        ("values", "budget", "batch"),
        [({"max_prefill_tokens": 16}, 16, 32), ({"max_batch": 4096}, 2048, 4096)],
    )
    def test_the_budget_of_a_step_holds_a_token_of_every_sequence(
        self, values: dict[str, int], budget: int, batch: int
    ) -> None:
        error = refused(**values)
        assert f"max_prefill_tokens = {budget} is less than max_batch = {batch}" in error.message
        check_config(replace(PLAIN, max_batch=16, max_prefill_tokens=16))

    def test_a_device_is_named_once(self) -> None:
        assert "names a device twice" in refused(device_list=(0, 1, 0)).message

    @pytest.mark.parametrize("quant", [None, WeightQuant.NONE])
    def test_a_group_of_weights_needs_a_quantisation(self, quant: WeightQuant | None) -> None:
        error = refused(weight_quant=quant, weight_quant_group_size=32)
        assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", "config.weight_quant_group_size")
        check_config(replace(PLAIN, weight_quant=WeightQuant.INT8, weight_quant_group_size=32))

    def test_host_blocks_need_a_prefix_cache(self) -> None:
        error = refused(num_host_blocks=4, enable_prefix_cache=False)
        assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", "config.num_host_blocks")
        check_config(replace(PLAIN, num_host_blocks=4))
        check_config(replace(PLAIN, num_host_blocks=0, enable_prefix_cache=False))

    @pytest.mark.parametrize("kind", [None, RopeScalingType.MODEL])
    def test_factors_need_a_type(self, kind: RopeScalingType | None) -> None:
        error = refused(rope_scaling=RopeScaling(kind, factor=2.0))
        assert error.violations[0].field == "config.rope_scaling.factor"
        check_config(replace(PLAIN, rope_scaling=RopeScaling(kind)))

    @pytest.mark.parametrize("kind", [kind for kind in RopeScalingType if kind is not RopeScalingType.MODEL])
    def test_a_rope_scaling_that_is_built_is_accepted(self, kind: RopeScalingType) -> None:
        check_config(replace(PLAIN, rope_scaling=RopeScaling(kind, factor=2.0)))


class TestEffective:
    def test_every_field_with_a_default_is_filled_in(self) -> None:
        config = effective_config(PLAIN)
        assert (config.max_batch, config.max_prefill_tokens, config.block_size, config.num_blocks) == (32, 2048, 16, 0)
        assert (config.kv_cache_mode, config.enable_prefix_cache) == (KvCacheMode.DEFAULT, True)
        assert (config.max_waiting, config.drain_limit, config.tensor_parallel) == (256, 30.0, 1)

    @pytest.mark.parametrize("unit", [None, ComputeUnit.CUDA])
    def test_where_a_card_may_compute_the_core_sizes_steps(
        self, monkeypatch: pytest.MonkeyPatch, unit: ComputeUnit | None
    ) -> None:
        monkeypatch.setattr(backend_fields, "has_driver", lambda: True)
        asked = replace(PLAIN, compute_unit=unit)
        config, plan = effective_config(asked), core_plan(asked, FILES, EngineOptions())
        assert (config.max_batch, config.max_prefill_tokens) == (None, None)
        assert (plan.max_batch, plan.max_prefill_tokens) == (0, 0)
        ready = CoreReady(("cuda:0",), ComputeDtype.BFLOAT16, ComputeUnit.CUDA, 2, 512, 99, 1, 2, 3)
        known = ready_config(config, replace(ready, max_batch=256, max_prefill_tokens=8192))
        assert (known.max_batch, known.max_prefill_tokens) == (256, 8192)
        check_config(replace(asked, max_batch=4096))
        check_config(replace(asked, max_prefill_tokens=8))
        with pytest.raises(InvalidArgument, match="max_prefill_tokens = 8 is less than max_batch = 9"):
            check_config(replace(asked, max_batch=9, max_prefill_tokens=8))
        on_cpu = effective_config(replace(PLAIN, compute_unit=ComputeUnit.CPU))
        assert (on_cpu.max_batch, on_cpu.max_prefill_tokens) == (32, 2048)
        assert effective_config(PLAIN, "cpu").max_batch == 32

    def test_what_was_set_stays(self) -> None:
        config = effective_config(
            replace(PLAIN, max_batch=1, num_threads=0, enable_prefix_cache=False, drain_limit=0.0)
        )
        assert (config.max_batch, config.num_threads, config.enable_prefix_cache, config.drain_limit) == (
            1,
            0,
            False,
            0,
        )

    @pytest.mark.parametrize(
        ("quant", "group"), [(None, None), (WeightQuant.NONE, None), (WeightQuant.INT8, 0), (WeightQuant.INT4, 128)]
    )
    def test_the_group_of_weights_is_shown_where_they_are_quantised(
        self, quant: WeightQuant | None, group: int | None
    ) -> None:
        assert effective_config(replace(PLAIN, weight_quant=quant)).weight_quant_group_size == group
        if group is not None:
            own = effective_config(replace(PLAIN, weight_quant=quant, weight_quant_group_size=32))
            assert own.weight_quant_group_size == 32

    def test_once_ready_it_shows_what_the_core_chose(self) -> None:
        ready = CoreReady(("cpu",), ComputeDtype.FLOAT32, ComputeUnit.CPU, 2, 512, 99, 1, 2, 3, 7, 4)
        config = ready_config(effective_config(replace(PLAIN, format=ModelFormat.HF)), ready)
        assert (config.dtype, config.compute_unit, config.num_threads) == (ComputeDtype.FLOAT32, ComputeUnit.CPU, 2)
        assert (config.max_length, config.num_blocks, config.format) == (512, 99, ModelFormat.HF)
        assert config.num_host_blocks == 7
        effective = ready_effective(EffectiveConfig(config), core_plan(PLAIN, FILES, EngineOptions()), ready)
        assert (effective.kv_tokens, effective.host_kv_tokens, effective.host_kv_bytes) == (99 * 16, 7 * 16, 4)


class TestPlan:
    def test_unset_fields_leave_the_choice_to_the_core(self) -> None:
        plan = core_plan(PLAIN, FILES, EngineOptions())
        where = CorePlan(path="/models/smol", format=ModelFormat.HF, vocab_size=384)
        assert plan == replace(where, stream_interval=STREAM_INTERVAL, step_target=None)

    def test_what_was_set_reaches_the_core(self) -> None:
        scaling = RopeScaling(RopeScalingType.LINEAR, factor=2.0)
        values: dict[str, Any] = {
            "file_prefix": "q4",
            "dtype": ComputeDtype.BFLOAT16,
            "compute_unit": ComputeUnit.CPU,
            "device_list": (1,),
            "num_threads": 3,
            "max_batch": 4,
            "max_length": 99,
            "max_prefill_tokens": 64,
            "block_size": 32,
            "num_blocks": 7,
            "num_host_blocks": 9,
            "kv_cache_mode": KvCacheMode.DEFAULT,
            "enable_prefix_cache": False,
            "memory_ratio": 0.5,
            "rope_scaling": scaling,
            "weight_quant": WeightQuant.INT4,
            "weight_quant_group_size": 64,
            "activation_quant": ActivationQuant.INT8,
        }
        plan = core_plan(replace(PLAIN, **values), FILES, EngineOptions(backend="cpu"))
        assert {name: getattr(plan, name) for name in values} == values
        assert plan.backend == "cpu"

    def test_no_field_of_a_plan_is_forgotten(self) -> None:
        """Whatever a plan has is a field of the config, an option, or where the files are."""
        known = {field.name for field in fields(RuntimeConfig)} | {field.name for field in fields(EngineOptions)}
        assert {field.name for field in fields(CorePlan)} <= known | {"path", "vocab_size", "draft"}
