"""Converting messages about models and servers into the public types."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Protocol

from google.protobuf.message import Message
from headrace_proto.v1 import engine_service_pb2, generation_pb2, model_pb2, model_service_pb2, runtime_pb2, stat_pb2

from headrace import model_types
from headrace._values.convert import optional, time_of
from headrace._values.scalars import enum_name
from headrace._values.unfill import to_fields
from headrace._values.wire_errors import error_from_status
from headrace.types import ConfigWarning, ModelState


def state_of(number: int) -> ModelState:
    """Return the public name of a state; UNKNOWN for none, or one that is newer than this version."""
    return ModelState.__members__.get(enum_name(model_pb2.ModelState.DESCRIPTOR, number), ModelState.UNKNOWN)


class OnEngines(Protocol):
    """An answer with a model on each engine."""

    @property
    def engines(self) -> Iterable[model_pb2.ModelInfo]:
        """The entries."""


def engines_of(answer: OnEngines) -> list[model_types.ModelInfo]:
    """Return a model on each engine."""
    return models_of(answer.engines)


def models_of(models: Iterable[model_pb2.ModelInfo]) -> list[model_types.ModelInfo]:
    """Return models on engines."""
    return [model_of(one) for one in models]


def model_of(info: model_pb2.ModelInfo) -> model_types.ModelInfo:
    """Return a model on an engine."""
    return model_types.ModelInfo(
        model_name=info.model_name,
        engine=info.engine,
        state=state_of(info.state),
        wanted_state=state_of(info.wanted_state),
        failure=error_from_status(info.failure) if info.HasField("failure") else None,
        progress=_progress_of(info.progress) if info.HasField("progress") else None,
        effective=_effective_of(info.effective) if info.HasField("effective") else None,
        state_time=time_of(info, "state_time"),
        logits_processors=tuple(info.logits_processors),
    )


def adapters_of(adapters: Iterable[model_pb2.AdapterInfo]) -> list[model_types.AdapterInfo]:
    """Return adapters on engines."""
    return [_adapter_of(one) for one in adapters]


def _adapter_of(info: model_pb2.AdapterInfo) -> model_types.AdapterInfo:
    failure = error_from_status(info.failure) if info.HasField("failure") else None
    return model_types.AdapterInfo(**_same_names(info, model_types.AdapterInfo, {"failure": failure}))


def serialize_step_of(step: model_service_pb2.SerializeModelResponse) -> model_types.SerializeStep:
    """Return a step of writing a model."""
    model = step.model
    made = model_types.SerializedModel(model.model_path, model.file_prefix, model.written)
    return model_types.SerializeStep(
        engine=step.engine,
        progress=_progress_of(step.progress) if step.HasField("progress") else None,
        model=made if step.HasField("model") else None,
        failure=error_from_status(step.failure) if step.HasField("failure") else None,
    )


def _progress_of(progress: model_pb2.ModelProgress) -> model_types.ModelProgress:
    phase = enum_name(model_pb2.ModelPhase.DESCRIPTOR, progress.phase)
    return model_types.ModelProgress(phase, progress.bytes_done, optional(progress, "bytes_total"))


def _effective_of(effective: runtime_pb2.EffectiveConfig) -> model_types.EffectiveConfig:
    special = {
        "config": to_fields(effective.config),
        "devices": tuple(effective.devices),
        "generation_defaults": to_fields(effective.generation_defaults),
        "warnings": warnings_of(effective.warnings),
        "logits_processors": tuple(effective.logits_processors),
    }
    return model_types.EffectiveConfig(**_same_names(effective, model_types.EffectiveConfig, special))


def warnings_of(warnings: Iterable[generation_pb2.Warning]) -> tuple[ConfigWarning, ...]:
    """Return warnings about values that are probably mistakes."""
    return tuple(ConfigWarning(one.field, one.message) for one in warnings)


def _same_names(message: Message, kind: Any, special: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a dataclass: `special`, and all others from the message's fields of the same names."""
    plain = [field.name for field in fields(kind) if field.name not in special]
    return special | {name: _plain(message, name) for name in plain}


def _plain(message: Message, name: str) -> Any:
    has_presence = message.DESCRIPTOR.fields_by_name[name].has_presence
    return optional(message, name) if has_presence else getattr(message, name)


def description_of(answer: model_service_pb2.InspectModelResponse) -> model_types.ModelDescription:
    """Return the description of a model at a path."""
    found = answer.description
    special = {
        "engine": answer.engine,
        "format": enum_name(runtime_pb2.ModelFormat.DESCRIPTOR, found.format),
        "config": json.loads(found.config_json or "{}"),
        "generation_config": to_fields(found.generation_config),
        "refusal": error_from_status(found.refusal) if found.HasField("refusal") else None,
    }
    return model_types.ModelDescription(**_same_names(found, model_types.ModelDescription, special))


def stats_of(stats: Iterable[stat_pb2.EngineStat]) -> list[model_types.EngineStat]:
    """Return statistics of engines."""
    kind = model_types.EngineStat
    return [kind(**_same_names(one, kind, {"state": state_of(one.state)})) for one in stats]


def server_of(info: engine_service_pb2.GetServerInfoResponse) -> model_types.ServerInfo:
    """Return the information about a server."""
    special = {
        "role": enum_name(engine_service_pb2.ServerRole.DESCRIPTOR, info.role),
        "features": tuple(info.features),
        "devices": tuple(info.devices),
        "start_time": time_of(info, "start_time"),
        "engines": tuple(
            model_types.EngineInfo(**_same_names(one, model_types.EngineInfo, {})) for one in info.engines
        ),
    }
    return model_types.ServerInfo(**_same_names(info, model_types.ServerInfo, special))


def tokenized_of(answer: engine_service_pb2.TokenizeResponse) -> model_types.Tokenized:
    """Return the token ids of a prompt."""
    return model_types.Tokenized(list(answer.token_ids), answer.rendered_text, warnings_of(answer.warnings))


def detokenized_of(answer: engine_service_pb2.DetokenizeResponse) -> model_types.Detokenized:
    """Return the text of token ids."""
    return model_types.Detokenized(answer.text, list(answer.pieces))
