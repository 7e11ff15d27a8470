"""The models of a command line: what their files say, and what comes of starting them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from headrace_engine.backends.kv_size import amount
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.engine import Engine
from headrace_engine.errors import HeadraceError, Internal
from headrace_engine.model_types import EffectiveConfig, ModelDescription
from headrace_engine.service.program.doctor.findings import Finding


async def examine_model(engine: Engine, config: RuntimeConfig) -> AsyncGenerator[Finding, None]:
    """Yield what a model's files are, and what an engine makes of them: it is started, as a core would, and stopped."""
    subject = f"model {config.model_name}"
    try:
        described = await engine.inspect_model(
            config.model_path,
            file_prefix=config.file_prefix,
            revision=config.revision,
            hub=config.hub,
            format=config.format,
        )
    except HeadraceError as error:
        yield _refused(subject, error)
        return
    yield _files(subject, described)
    try:
        seconds, effective = await _started(engine, config)
    except HeadraceError as error:
        yield _refused(subject, error)
        return
    yield _running(subject, effective, seconds)
    for warning in effective.warnings:
        facts = {"field": warning.field, "message": warning.message}
        yield Finding(subject, f"warning: {warning.field}: {warning.message}", None, facts)


async def _started(engine: Engine, config: RuntimeConfig) -> tuple[float, EffectiveConfig]:
    """Start a model and stop it again. Return how long the start took, and what came of its config."""
    await engine.install_model(config)
    began = time.monotonic()
    await engine.start_model(config.model_name)
    seconds, effective = time.monotonic() - began, engine.get_model(config.model_name).effective
    await engine.stop_model(config.model_name)
    if effective is None:
        raise Internal(f"{config.model_name} runs without a config")
    return seconds, effective


def _files(subject: str, described: ModelDescription) -> Finding:
    facts = {
        "format": described.format.value,
        "architecture": described.architecture,
        "parameters": described.num_parameters,
        "weight_bytes": described.weight_bytes,
        "kv_bytes_per_token": described.kv_bytes_per_token,
        "max_length": described.max_length,
        "vocab_size": described.vocab_size,
    }
    text = (
        f"{described.format.value}, {described.architecture}, {described.num_parameters / 1e6:,.1f} million parameters "
        f"in {amount(described.weight_bytes)}, sequences of up to {described.max_length} tokens, "
        f"{amount(described.kv_bytes_per_token)} of keys and values a token"
    )
    return Finding(subject, text, None, facts)


def _running(subject: str, effective: EffectiveConfig, seconds: float) -> Finding:
    config = effective.config
    length, batch = config.max_length or effective.model_max_length, config.max_batch or 1
    whole = effective.kv_tokens // length
    facts = {
        "devices": list(effective.devices),
        "dtype": None if config.dtype is None else config.dtype.value,
        "num_threads": config.num_threads,
        "weight_bytes": effective.weight_bytes,
        "workspace_bytes": effective.workspace_bytes,
        "kv_bytes": effective.kv_bytes,
        "kv_tokens": effective.kv_tokens,
        "max_length": length,
        "max_batch": batch,
        "whole_sequences": whole,
        "start_seconds": round(seconds, 1),
    }
    text = (
        f"starts in {seconds:.1f} s on {', '.join(effective.devices)}: weights {amount(effective.weight_bytes)}, "
        f"workspace {amount(effective.workspace_bytes)}, keys and values {amount(effective.kv_bytes)} for "
        f"{effective.kv_tokens} tokens; max_length {length}, max_batch {batch}, of which {min(whole, batch)} "
        "fit at full length"
    )
    return Finding(subject, text, facts=facts)


def _refused(subject: str, error: HeadraceError) -> Finding:
    return Finding(subject, error.message, works=False, facts={"reason": error.reason})
