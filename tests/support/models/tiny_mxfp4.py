"""Tiny gpt-oss whose experts are in MXFP4, as published checkpoints have them; and the same weights as numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.models.damage import edit_json
from support.models.quantized_checkpoints import WEIGHTS
from support.models.tiny_models import make_tiny_family

SETTINGS = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def write_mxfp4(path: Path, **changes: Any) -> tuple[Path, Path]:
    """Write a model with experts in blocks, and one with what transformers makes of these in float32."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    source = make_tiny_family(path / "source", "gpt oss", **changes)
    quantized = load_file(source / WEIGHTS)
    plain = dict(quantized)
    for name in [name for name in quantized if name.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales = random_blocks(quantized.pop(name))
        quantized |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    for folder, tensors in (("quantized", quantized), ("plain", plain)):
        shutil.copytree(source, path / folder)
        save_file(tensors, path / folder / WEIGHTS, metadata={"format": "pt"})
    edit_json(path / "quantized" / "config.json", quantization_config=SETTINGS)
    return path / "quantized", path / "plain"


def random_blocks(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and scales as large as weights [experts, inputs, outputs]; each block has a number of size 6."""
    experts, inputs, outputs = weights.shape
    generator = torch.Generator().manual_seed(outputs)
    codes = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
    codes[..., 5] |= 7
    size = int(torch.log2(weights.std() / 3))
    scales = 127 + size + torch.randint(-1, 1, codes.shape[:-1], generator=generator)
    return codes, scales.to(torch.uint8)
