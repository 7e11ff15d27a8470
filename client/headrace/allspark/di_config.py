"""DashInfer's config files: YAML with the sections model, runtime_config, generation_config and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace._values.refusals import invalid

_ROPE = {
    "type": "type", "rope_type": "type", "factor": "factor", "original_max_position_embeddings": "original_max_length",
    **{name: name for name in ("low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow")},
}  # fmt: skip
"""Keys of rope_scaling as in Hugging Face's configs, with ours."""


def read_config(text: str | None = None, path: str | Path | None = None) -> dict[str, Any]:
    """Return a config from YAML text, or from a file on this host.

    Raises:
        ImportError: the package PyYAML is missing.
        OSError: the file cannot be read.
        ValueError: it is no YAML, or no mapping.
    """
    try:
        import yaml
    except ImportError as error:
        raise ImportError("YAML needs the package PyYAML: pip install 'headrace[yaml]'") from error
    source = Path(path).read_text(encoding="utf-8") if path is not None else text or ""
    try:
        content = yaml.safe_load(source)
    except yaml.YAMLError as error:
        raise ValueError(f"{path or 'the config'} is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path or 'the config'} must be a mapping of sections, not {type(content).__name__}")
    return content


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a config, or the config if it has none of that name and so is one.

    Raises:
        InvalidRequestError: it is no mapping.
    """
    found = config.get(name, config) if isinstance(config, Mapping) else config
    if not isinstance(found, Mapping):
        raise invalid(name, found, "a mapping of fields")
    return found


def runtime_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of runtime_config without nesting; values and names stay DashInfer's."""
    flat = {name: value for name, value in fields.items() if name not in ("compute_unit", "cuda_mem", "rope_scaling")}
    if flat.get("engine_max_prefill_length") == 0:  # DashInfer's default.
        del flat["engine_max_prefill_length"]
    return flat | _compute_unit(fields) | _memory(fields) | _rope_scaling(fields)


def _compute_unit(fields: Mapping[str, Any]) -> dict[str, Any]:
    given = fields.get("compute_unit")
    if not isinstance(given, Mapping):
        return {} if given is None else {"compute_unit": given}
    names = {"device_type": "compute_unit", "device_ids": "device_list", "compute_thread_in_device": "num_threads"}
    return _renamed("compute_unit", given, names)


def _memory(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the share of device memory; -1 means the environment's, as with us."""
    renamed = _renamed(
        "cuda_mem", fields.get("cuda_mem") or {}, {"memory_ratio": "memory_ratio", "reserve_size_mb": "reserve_size_mb"}
    )
    return {name: value for name, value in renamed.items() if value != -1}


def _rope_scaling(fields: Mapping[str, Any]) -> dict[str, Any]:
    given = fields.get("rope_scaling")
    if not given:
        return {}
    renamed = _renamed("rope_scaling", given, _ROPE)
    if "type" in renamed:
        renamed["type"] = str(renamed["type"]).upper()
    return {"rope_scaling": renamed}


def _renamed(name: str, given: Any, names: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise invalid(name, given, "a mapping of fields")
    for key in given:
        if key not in names:
            raise invalid(name, key, f"one of {', '.join(names)}")
    return {names[key]: value for key, value in given.items()}
