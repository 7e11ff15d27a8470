"""Random LoRA adapters as PEFT writes them, and what PEFT computes with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from headrace_engine.ipc.plans import AdapterPlan
from headrace_engine.models.adapters.adapter import content_digest
from headrace_engine.models.adapters.opening import open_adapter
from headrace_engine.models.spec import DecoderSpec

from support.models.json_files import read_json
from support.models.tiny_gguf import ARCHITECTURES, add_key, file_tensor_name, interleaved

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WIDE = 0.05
"""Standard deviation of factors: an adapter then changes most of the ids that a tiny model samples."""


def make_tiny_adapter(
    path: Path | str,
    model: Path | str,
    *,
    seed: int = 1,
    edit: Callable[[Any], None] | None = None,
    **overrides: Any,
) -> Path:
    """Write an adapter for a Hugging Face model to directory `path`; overrides go to LoraConfig.

    Args:
        edit: changes the model of PEFT before it is saved.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    settings = {"r": 4, "lora_alpha": 8, "target_modules": list(TARGETS), "task_type": "CAUSAL_LM", **overrides}
    with torch.random.fork_rng(), _reading_old_names():
        torch.manual_seed(seed)
        changed = get_peft_model(_model(model), LoraConfig(**settings))
        for name, parameter in changed.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=WIDE if "lora_B" in name else 1.0)
    if edit is not None:
        edit(changed)
    changed.save_pretrained(path)
    return Path(path)


def as_gguf(path: Path | str, adapter: Path, model: Path, **metadata: Any) -> Path:
    """Write an adapter of PEFT as GGUF file `path`, in the layout of llama.cpp's converter.

    Args:
        metadata: keys that replace those of the adapter, with "_" for "."; None takes one away.
    """
    import gguf
    from safetensors.numpy import load_file

    config, settings = read_json(model / "config.json"), read_json(adapter / "adapter_config.json")
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    keys = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float(settings["lora_alpha"])}
    for key, value in {**keys, **{name.replace("_", "."): value for name, value in metadata.items()}}.items():
        if value is not None:
            add_key(writer, key, value)
    for name, data in load_file(adapter / "adapter_model.safetensors").items():
        module, side = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
        target = file_tensor_name(f"{module}.weight", architecture, config["num_hidden_layers"])
        moved = interleaved(module + ".", data, config, architecture) if side == "B" else data
        writer.add_tensor(f"{target}.lora_{side.lower()}", np.ascontiguousarray(moved))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def peft_logits(model: Path | str, adapter: Path | str | None, ids: Sequence[int]) -> Any:
    """Return the logits of PEFT in float32 after each id, [ids, vocab]; without an adapter those of transformers."""
    import torch
    from peft import PeftModel

    changed = _model(model)
    if adapter is not None:
        with _reading_old_names():
            changed = PeftModel.from_pretrained(changed, str(adapter))
    with torch.inference_mode():
        return changed.eval()(torch.tensor([list(ids)])).logits[0]


def peft_states(model: Path | str, adapter: Path | str | None, ids: Sequence[int]) -> Any:
    """Return the last hidden states of PEFT in float32 after the final norm, [ids, hidden], as numbers of numpy."""
    import torch
    from peft import PeftModel

    changed = _model(model)
    if adapter is not None:
        with _reading_old_names():
            changed = PeftModel.from_pretrained(changed, str(adapter))
    with torch.inference_mode():
        return changed.eval()(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states[-1][0].numpy()


def peft_greedy(model: Path | str, adapter: Path | str | None, prompt: Sequence[int], count: int) -> list[int]:
    """Return the most likely ids after a prompt, as PEFT computes them in float32, without cached keys and values."""
    import torch
    from peft import PeftModel

    changed = _model(model)
    if adapter is not None:
        with _reading_old_names():
            changed = PeftModel.from_pretrained(changed, str(adapter))
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(changed.eval()(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def adapter_plan(number: int, path: Path | str, spec: DecoderSpec) -> AdapterPlan:
    """Return the plan that loads an adapter."""
    files = open_adapter(Path(path), spec)
    return AdapterPlan(number, str(path), content_digest(files), files.rank)


@contextmanager
def _reading_old_names() -> Iterator[None]:
    """Let PEFT read a property that transformers will rename."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)
        yield


def _model(path: Path | str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
