"""The same load on the same card with transformers, by its `generate`."""

from __future__ import annotations

import time
from typing import Any

import torch
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.models.spec import DecoderSpec

from bench.gpu.decode import Load, Measured


def measure(spec: DecoderSpec, device: Device, load: Load, batch: int) -> Measured:
    """Measure greedy answers to random prompts, in bfloat16 with transformers' default attention."""
    model = _model(spec, device.torch)
    prompts = torch.randint(spec.vocab_size, (batch, load.prompt), device=device.torch)

    def seconds(new: int) -> float:
        device.mark().wait()
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(prompts, do_sample=False, min_new_tokens=new, max_new_tokens=new)
        device.mark().wait()
        return time.perf_counter() - began

    seconds(load.new)
    prompt_s, whole = seconds(1), seconds(load.new)
    return Measured(batch, prompt_s, (whole - prompt_s) / max(1, load.new - 1), batch * load.new / whole)


def _model(spec: DecoderSpec, device: torch.device) -> Any:
    """Return a LlamaForCausalLM with random weights, created on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_length,
        tie_word_embeddings=spec.tied_head,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
