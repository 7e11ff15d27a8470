"""Writes the files of the measured models."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, Qwen2Config, Qwen2ForCausalLM

_VOCABULARY = 151936
_SHAPE: dict[str, Any] = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
_THETA = 1e6


def make_smol(source: Path, folder: Path) -> None:
    """Write the values of a GGUF file in bfloat16."""
    given = {"gguf_file": source.name, "dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
    AutoModelForCausalLM.from_pretrained(source.parent, **given).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def make_qwen(folder: Path, vocabulary: Path | None) -> None:
    """Write the shape of Qwen2.5-0.5B with random weights in bfloat16.

    Args:
        vocabulary: a GGUF file with the tokenizer; None: a synthetic one with as many ids.
    """
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": _THETA}
    config = Qwen2Config(**_SHAPE, tie_word_embeddings=True, rope_parameters=rope, dtype="bfloat16")
    model: Any = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    # Older readers expect it at the top level.
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_theta": _THETA}, indent=1))
    if vocabulary is None:
        _made_up_tokenizer().save(str(folder / "tokenizer.json"))
    else:
        AutoTokenizer.from_pretrained(vocabulary.parent, gguf_file=vocabulary.name).save_pretrained(folder)


def _made_up_tokenizer() -> Tokenizer:
    """Return a tokenizer with an id per byte, and meaningless words for the shape's other rows."""
    words = [*sorted(ByteLevel.alphabet()), *(f"word{number}" for number in range(_VOCABULARY))]
    tokenizer = Tokenizer(BPE({word: number for number, word in enumerate(words[:_VOCABULARY])}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    return tokenizer


def write_qwen_gguf(folder: Path, vocabulary: Path, target: Path) -> None:
    """Write the shape's weights as a GGUF file in bfloat16, with the tokenizer of another GGUF file."""
    writer = gguf.GGUFWriter(target, "qwen2")
    writer.add_block_count(_SHAPE["num_hidden_layers"])
    writer.add_context_length(_SHAPE["max_position_embeddings"])
    writer.add_embedding_length(_SHAPE["hidden_size"])
    writer.add_feed_forward_length(_SHAPE["intermediate_size"])
    writer.add_head_count(_SHAPE["num_attention_heads"])
    writer.add_head_count_kv(_SHAPE["num_key_value_heads"])
    writer.add_rope_freq_base(_THETA)
    writer.add_layer_norm_rms_eps(_SHAPE["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    _copy_tokenizer(gguf.GGUFReader(vocabulary), writer)
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, int(_SHAPE["num_hidden_layers"]))
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            _add(writer, names.get_name(name, try_suffixes=(".weight", ".bias")), tensor.detach())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            add: Any = writer.add_array if field.types[0] == gguf.GGUFValueType.ARRAY else writer.add_key_value
            kind = () if field.types[0] == gguf.GGUFValueType.ARRAY else (field.types[0],)
            add(key, field.contents(), *kind)


def _add(writer: gguf.GGUFWriter, name: str | None, tensor: torch.Tensor) -> None:
    assert name is not None
    if tensor.ndim == 1:
        writer.add_tensor(name, tensor.float().numpy())
        return
    data = tensor.view(torch.uint16).numpy().view(np.uint8).reshape(tensor.shape[0], -1)
    writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.BF16)


def quantize(program: Path, source: Path, target: Path, form: str) -> None:
    """Convert a GGUF file to another format with llama-quantize."""
    subprocess.run([program, "--allow-requantize", source, target, form], check=True, stdout=subprocess.DEVNULL)
