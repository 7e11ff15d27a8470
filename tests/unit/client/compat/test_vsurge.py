"""vSurge's stand-ins: what becomes of each argument, and what has no counterpart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from headrace import InvalidRequestError, vsurge
from headrace._values import calls
from headrace.vsurge import (
    AttentionMechanisms,
    AutoEasyDeLModelForCausalLM,
    EasyDeLBaseConfigDict,
    EasyDeLGradientCheckPointers,
    EasyDeLQuantizationMethods,
    PartitionAxis,
    SamplingParams,
    jax,
    vSurge,
)

DOCUMENTED = {
    "auto_shard_model": True,
    "sharding_axis_dims": (1, 1, 1, -1, 1),
    "config_kwargs": EasyDeLBaseConfigDict(
        freq_max_position_embeddings=8192, mask_max_position_embeddings=8192,
        kv_cache_quantization_method=EasyDeLQuantizationMethods.NONE,
        gradient_checkpointing=EasyDeLGradientCheckPointers.NONE, attn_mechanism=AttentionMechanisms.AUTO,
        decode_attn_mechanism=AttentionMechanisms.REGRESSIVE_DECODE, kvdtype=jax.numpy.bfloat16,
    ),
    "quantization_method": EasyDeLQuantizationMethods.NONE, "param_dtype": jax.numpy.bfloat16,
    "dtype": jax.numpy.bfloat16, "partition_axis": PartitionAxis(), "precision": jax.lax.Precision.DEFAULT,
}  # fmt: skip


def named(**arguments: Any) -> Any:
    return AutoEasyDeLModelForCausalLM.from_pretrained("/m", **arguments)


def test_every_documented_argument_has_its_place() -> None:
    model = named(**DOCUMENTED)
    assert (model.path, model.fields) == ("/m", {"dtype": "BFLOAT16", "max_length": 8192})


class bfloat16:  # noqa: N801
    """A number format as jax.numpy has them: a class with the name."""


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (bfloat16, "BFLOAT16"),
        ("float16", "FLOAT16"),
        ("BFLOAT16", "BFLOAT16"),
        (np.float32, "FLOAT32"),
        (np.dtype("float16"), "FLOAT16"),
        (torch.bfloat16, "BFLOAT16"),
        (SimpleNamespace(name="float32"), "FLOAT32"),
    ],
)
def test_number_formats_are_known_by_name(given: Any, dtype: str) -> None:
    assert named(dtype=given, param_dtype=given).fields == {"dtype": dtype}


def test_eight_bits_and_our_own_fields_are_taken() -> None:
    eight = EasyDeLQuantizationMethods.A8BIT
    model = named(quantization_method=eight, config_kwargs={"kv_cache_quantization_method": "8bit"}, max_batch=4)
    assert model.fields == {"weight_quant": "INT8", "kv_cache_mode": "INT8", "max_batch": 4}
    calls.install_model("m", "/m", engine_ids=(), no_wait=False, fields=model.fields)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dtype": "float8"}, "dtype = 'float8'.*bfloat16"),
        ({"dtype": "bfloat16", "param_dtype": "float32"}, "param_dtype = 'float32'.*same as dtype"),
        ({"config_kwargs": {"kvdtype": "bfloat16"}}, "kvdtype"),
        ({"precision": jax.lax.Precision.HIGHEST}, "precision.*give DEFAULT"),
        ({"quantization_method": EasyDeLQuantizationMethods.NF4}, 'quantization_method.*weight_quant="INT4"'),
        ({"config_kwargs": {"kv_cache_quantization_method": "nf4"}}, 'kv_cache_.*kv_cache_mode="UINT4"'),
        ({"config_kwargs": {"attn_mechanism": AttentionMechanisms.RING}}, "attn_mechanism.*give AUTO"),
        ({"config_kwargs": {"gradient_checkpointing": "checkpoint_dots"}}, "gradient_checkpointing.*give NONE"),
        (
            {"config_kwargs": {"freq_max_position_embeddings": 9, "mask_max_position_embeddings": 8}},
            "freq_max_position_embeddings = 9.*the same",
        ),
        ({"partition_axis": {"batch": "dp"}}, "partition_axis"),
        ({"sharding_axis_dims": (2, 1, 1, 1, 1)}, "sharding_axis_dims.*last but one"),
        ({"sharding_axis_dims": (1,)}, "sharding_axis_dims"),
    ],
)
def test_an_argument_without_counterpart_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        named(**arguments)


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="did you mean dtype"):
        named(dtyp="float32")
    with pytest.raises(TypeError, match="did you mean attn_mechanism"):
        named(config_kwargs={"attn_mechanisms": "auto"})
    with pytest.raises(InvalidRequestError, match="batch_axis"):
        PartitionAxis(batch_axis="dp")


def test_several_devices_reach_the_engine_to_be_refused() -> None:
    assert named(sharding_axis_dims=(1, 1, 1, 4, 1)).fields == {"tensor_parallel": 4}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_concurrent_prefill": 4}, "max_concurrent_prefill = 4.*leave it out"),
        ({"prefill_lengths": [128]}, "prefill_lengths.*max_prefill_length"),
        ({"slot_clear_steps": 5}, "slot_clear_steps = 5"),
        ({"model": "org/model"}, "model = 'org/model'"),
    ],
)
def test_a_vsurge_refuses_what_has_no_counterpart(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        vSurge.from_model(**{"model": named(), "processor": None, "address": "localhost:1", **arguments})


def test_it_takes_what_changes_nothing_and_refuses_other_methods() -> None:
    surge = vSurge.from_model(
        named(), None, max_concurrent_prefill=1, address="localhost:1", interleaved_mode=True, verbose=False,
        bytecode_decode=True,
    )  # fmt: skip
    with pytest.raises(AttributeError, match=r"pause.: use client.stop_model"):
        surge.pause()
    with pytest.raises(AttributeError, match="no 'nothing'"):
        _ = surge.nothing
    surge.close()
    with pytest.raises(TypeError, match='no keyword "max_decodes"'):
        vSurge.from_model(named(), None, address="localhost:1", max_decodes=4)


class TestSamplingParams:
    def test_its_defaults_are_easydels(self) -> None:
        assert SamplingParams().build() == {
            "max_new_tokens": 16, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "repetition_penalty": 1.0,
        }  # fmt: skip

    def test_its_names(self) -> None:
        built = SamplingParams(
            max_tokens=5, min_tokens=2, suppress_tokens=[7, 8], stop="a", stop_token_ids=[3], seed=1,
            include_stop_str_in_output=True, skip_special_tokens=False, ignore_eos=True, bad_words=["b"],
        ).build()  # fmt: skip
        assert built | {
            "max_new_tokens": 5, "min_new_tokens": 2, "bad_words_ids": [[7], [8]], "stop_words": ["a"],
            "stop_token_ids": [3], "include_stop": True,
        } == built  # fmt: skip
        calls.start_request("m", "a", text=None, ids=None, messages=None, request_id=None, fields=built)

    @pytest.mark.parametrize("field", [{"n": 2}, {"logprobs": 3}, {"best_of": 2}, {"detokenize": False}])
    def test_results_without_a_place_are_refused(self, field: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequestError, match=f"{next(iter(field))} = .* is not supported"):
            SamplingParams(**field)
        assert SamplingParams(n=1).n == 1  # type: ignore[call-arg]

    def test_an_unknown_name_is_an_error(self) -> None:
        with pytest.raises(TypeError, match="did you mean max_tokens"):
            SamplingParams(max_token=5)  # type: ignore[call-arg]
        with pytest.raises(InvalidRequestError, match="suppress_tokens"):
            SamplingParams(suppress_tokens="abc")


@pytest.mark.parametrize("name", ["vDriver", "eSurge", "vSurgeApiServer"])
def test_names_without_counterpart_say_what_to_do(name: str) -> None:
    with pytest.raises(ImportError, match=f"headrace.vsurge has no {name}: "):
        exec(f"from headrace.vsurge import {name}")
    with pytest.raises(AttributeError):
        _ = vsurge.nothing
