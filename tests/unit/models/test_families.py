"""Configs become decoders, and what is not computed is refused by the name of the field."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.config import RopeScalingType
from headrace_engine.errors import BadModel
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families import ARCHITECTURES
from headrace_engine.models.spec import DecoderSpec, GateKind, LayerSpec
from transformers import Phi3Config

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


def config(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    """A whole config; a field that is set to ... is left out."""
    fields = {
        "architectures": [architecture],
        "vocab_size": 384,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50_000.0,
        "hidden_act": "silu",
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not ...}


def read(architecture: str = "LlamaForCausalLM", **changes: Any) -> DecoderSpec:
    """The decoder that a config describes."""
    fields = ConfigFields(config(architecture, **changes), "config.json")
    return ARCHITECTURES[architecture].from_config[architecture](fields)


def windows(spec: DecoderSpec) -> tuple[int | None, ...]:
    """The window of each layer."""
    return tuple(layer.window for layer in spec.layers)


def refusal(architecture: str = "LlamaForCausalLM", **changes: Any) -> str:
    """What is said about a config that is not computed."""
    with pytest.raises(BadModel) as caught:
        read(architecture, **changes)
    return caught.value.message


def test_a_llama_config() -> None:
    spec = read(tie_word_embeddings=True)
    assert (spec.hidden_size, spec.num_layers, spec.head_dim, spec.max_length) == (64, 4, 16, 4096)
    assert (spec.ropes[0].theta, spec.ropes[0].dim, spec.ropes[0].scaling) == (50_000.0, 16, RopeScalingType.MODEL)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.tied_head) == (False, False, False, True)
    assert spec.layers == (LayerSpec(),) * 4


def test_biases_are_switched_by_the_config() -> None:
    spec = read(attention_bias=True, mlp_bias=True)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True, True, True)
    qwen2 = read("Qwen2ForCausalLM")
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.mlp_bias) == (True, False, False)


def test_head_dim_may_differ_from_hidden_size_by_heads() -> None:
    assert read(head_dim=32).query_width == 128
    assert read(head_dim=None).head_dim == 16


@pytest.mark.parametrize(
    ("changes", "gate"),
    [({}, GateKind.GELU_TANH), ({"hidden_act": "gelu"}, GateKind.GELU_TANH), ({"hidden_act": "silu"}, GateKind.SILU)],
)
def test_gates_of_gemma(changes: dict[str, str], gate: GateKind) -> None:
    """The first published configs name the other one of two functions."""
    assert read("GemmaForCausalLM", **{"hidden_act": ..., **changes}).gate is gate


@pytest.mark.parametrize(
    ("architecture", "default"),
    [("SeedOssForCausalLM", 128), ("Ernie4_5ForCausalLM", 128), ("GptOssForCausalLM", 64), ("CwmForCausalLM", 128)],
)
def test_a_head_dim_that_is_null_is_not_one_that_is_absent(architecture: str, default: int) -> None:
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    more = {"rope_scaling": yarn, "num_local_experts": 4, "num_experts_per_tok": 2}
    assert read(architecture, head_dim=None, **more).head_dim == 16
    assert read(architecture, **more).head_dim == default


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": ...}, ["hidden_size is absent"]),
        ({"hidden_size": "64"}, ["hidden_size = '64'"]),
        ({"hidden_size": 0}, ["hidden_size = 0"]),
        ({"hidden_size": True}, ["hidden_size = True"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers = 1000000000"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps = nan"]),
        ({"rms_norm_eps": -1.0}, ["rms_norm_eps = -1.0"]),
        ({"hidden_act": "relu2"}, ["hidden_act = 'relu2'", "silu"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings = 'yes'"]),
        ({"hidden_size": 66}, ["num_attention_heads = 4", "hidden_size = 66"]),
        ({"head_dim": 15}, ["head_dim = 15", "even"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor = 0.5"]),
    ],
)
def test_a_wrong_field_is_refused_by_file_name_and_value(changes: dict[str, Any], words: list[str]) -> None:
    message = refusal(**changes)
    for word in ["config.json", *words]:
        assert word in message


@pytest.mark.parametrize("heads", [(4, 1), (6, 2), (7, 1), (14, 2), (5, 5), (12, 4), (40, 8)])
def test_bc120_unusual_head_ratios_are_taken(heads: tuple[int, int]) -> None:
    spec = read(num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=16)
    assert (spec.num_heads, spec.num_kv_heads) == heads


def test_bc120_heads_that_do_not_divide_are_refused() -> None:
    message = refusal(num_attention_heads=3, num_key_value_heads=2, head_dim=16)
    assert "num_key_value_heads = 2" in message
    assert "3" in message


class TestRopeScaling:
    @pytest.mark.parametrize(
        ("scaling", "expected"),
        [
            ({"type": "linear", "factor": 4.0}, (RopeScalingType.LINEAR, 4.0)),
            ({"rope_type": "linear", "factor": 4.0}, (RopeScalingType.LINEAR, 4.0)),
            ({"rope_type": "linear", "type": "linear", "factor": 4}, (RopeScalingType.LINEAR, 4.0)),
            ({"rope_type": "llama3", **LLAMA3}, (RopeScalingType.LLAMA3, 8.0)),
            ({"type": "llama3", **LLAMA3}, (RopeScalingType.LLAMA3, 8.0)),
            (None, (RopeScalingType.MODEL, 1.0)),
            ({}, (RopeScalingType.MODEL, 1.0)),
            ({"rope_type": "default"}, (RopeScalingType.MODEL, 1.0)),
        ],
    )
    def test_bc117_every_spelling_works(
        self, scaling: dict[str, Any] | None, expected: tuple[RopeScalingType, float]
    ) -> None:
        rope = read(rope_scaling=scaling).ropes[0]
        assert (rope.scaling, rope.factor) == expected
        assert rope.theta == 50_000.0

    def test_bc117_llama3_takes_all_its_factors(self) -> None:
        rope = read(rope_scaling={"rope_type": "llama3", **LLAMA3}).ropes[0]
        assert (rope.low_freq_factor, rope.high_freq_factor, rope.original_max_length) == (1.0, 4.0, 1024)

    def test_bc117_one_table_may_carry_theta_too(self) -> None:
        rope = read(rope_theta=..., rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 7e5}).ropes[0]
        assert (rope.scaling, rope.factor, rope.theta) == (RopeScalingType.LINEAR, 2.0, 7e5)
        assert read(rope_theta=..., rope_parameters={"rope_theta": 7e5}).ropes[0].theta == 7e5

    @pytest.mark.parametrize(
        ("scaling", "field"),
        [
            ({"rope_type": "magic", "factor": 2.0}, "rope_scaling.rope_type = 'magic'"),
            ({"type": "magic", "factor": 2.0}, "rope_scaling.type = 'magic'"),
            ({"rope_type": "yarn", "factor": 0.5}, "rope_scaling.factor = 0.5"),
            ({"rope_type": "yarn", "factor": 2.0, "beta_fast": "32"}, "rope_scaling.beta_fast = '32'"),
            ({"rope_type": "dynamic"}, "rope_scaling.factor is absent"),
            ({"rope_type": "longrope", "short_factor": [1.0] * 8}, "rope_scaling.long_factor is absent"),
            ({"rope_type": "longrope", "short_factor": [1.0]}, "rope_scaling.short_factor = [1.0]"),
            ({"rope_type": "linear"}, "rope_scaling.factor is absent"),
            ({"rope_type": "linear", "factor": 0.5}, "rope_scaling.factor = 0.5"),
            ({"rope_type": "linear", "factor": "2"}, "rope_scaling.factor = '2'"),
            ({"factor": 2.0}, "rope_scaling.rope_type is absent"),
            ({"rope_type": "llama3", **LLAMA3, "factor": None}, "rope_scaling.factor is absent"),
            ({"rope_type": "llama3", **LLAMA3, "low_freq_factor": None}, "rope_scaling.low_freq_factor is absent"),
            ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": None}, "rope_scaling.high_freq_factor is absent"),
            ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}, "rope_scaling.high_freq_factor = 1.0"),
            ({"rope_type": "linear", "type": "llama3", **LLAMA3}, "rope_scaling.type = 'llama3'"),
            ([2.0], "rope_scaling = [2.0]"),
        ],
    )
    def test_bc117_what_is_wrong_is_refused_by_field(self, scaling: Any, field: str) -> None:
        assert f"config.json: {field}" in refusal(rope_scaling=scaling)

    def test_two_tables_that_disagree_are_refused(self) -> None:
        parameters = {"rope_type": "linear", "factor": 4.0}
        assert "rope_scaling" in refusal(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters=parameters)


class TestWindows:
    def test_mistral_slides_in_every_layer(self) -> None:
        assert windows(read("MistralForCausalLM", sliding_window=128)) == (128,) * 4

    def test_mistral_without_a_window(self) -> None:
        assert windows(read("MistralForCausalLM", sliding_window=None)) == (None,) * 4

    def test_mistral_with_an_absent_window_has_the_first_ones(self) -> None:
        assert windows(read("MistralForCausalLM")) == (4096,) * 4

    def test_bc119_the_switch_turns_qwen2s_window_off(self) -> None:
        changes = {"sliding_window": 128, "max_window_layers": 2}
        assert windows(read("Qwen2ForCausalLM", use_sliding_window=False, **changes)) == (None,) * 4
        assert windows(read("Qwen2ForCausalLM", **changes)) == (None,) * 4

    def test_bc119_the_upper_layers_slide_when_it_is_on(self) -> None:
        changes = {"sliding_window": 128, "max_window_layers": 3, "use_sliding_window": True}
        assert windows(read("Qwen2ForCausalLM", **changes)) == (None, None, None, 128)

    def test_bc119_layer_types_decide_where_they_are_given(self) -> None:
        kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
        changes = {"sliding_window": 64, "use_sliding_window": True, "layer_types": kinds}
        assert windows(read("Qwen2ForCausalLM", **changes)) == (64, None, 64, None)

    def test_bc119_windows_are_those_of_transformers(self) -> None:
        from transformers import Qwen2Config

        for switch in (False, True):
            theirs = Qwen2Config(
                num_hidden_layers=4, use_sliding_window=switch, sliding_window=32, max_window_layers=1
            ).to_dict()
            found = windows(read("Qwen2ForCausalLM", **{**theirs, **config("Qwen2ForCausalLM")}))
            slides = [kind == "sliding_attention" for kind in theirs["layer_types"]]
            assert found == tuple(32 if slide else None for slide in slides)

    @pytest.mark.parametrize("kinds", [["full_attention"], ["full_attention"] * 3 + ["chunked"], "full_attention"])
    def test_wrong_layer_types_are_refused(self, kinds: object) -> None:
        changes = {"sliding_window": 64, "use_sliding_window": True, "layer_types": kinds}
        assert "layer_types" in refusal("Qwen2ForCausalLM", **changes)


def _longrope(**more: Any) -> dict[str, Any]:
    return {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, **more}}


def test_phi3_has_the_defaults_of_its_own_config_class() -> None:
    spec = read("Phi3ForCausalLM", rms_norm_eps=..., max_position_embeddings=16_384, **_longrope())
    expected = Phi3Config(max_position_embeddings=16_384)
    assert spec.norm_eps == expected.rms_norm_eps
    assert spec.ropes[0].original_max_length == expected.original_max_position_embeddings
    named = read("Phi3ForCausalLM", max_position_embeddings=16_384, **_longrope(original_max_position_embeddings=2048))
    assert named.ropes[0].original_max_length == 2048


@pytest.mark.parametrize(("length", "factor"), [(4096, 1.0), (8192, 2.0)])
def test_minicpm_rotates_by_the_length_of_the_model(length: int, factor: float) -> None:
    """Its code makes the table for max_position_embeddings at once, and never a shorter one."""
    fields = {"max_position_embeddings": length, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
    spec = read("MiniCPMForCausalLM", **fields, **_longrope(original_max_position_embeddings=4096))
    assert set(spec.ropes[0].frequency_factors) == {factor}
