"""Calls that name engines: an engine answers for itself, and UNKNOWN_ENGINE for any other name."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_proto.v1.model_pb2 import AdapterInfo, ModelInfo

from headrace_engine.errors import NotFound
from headrace_engine.model_types import AdapterView, ModelView
from headrace_engine.service.convert.results import ADAPTER, MODEL
from headrace_engine.service.convert.status import fill_status


def check_addressed(engine: str, engine_ids: Sequence[str]) -> None:
    """Refuse a call that names other engines but not this one.

    Raises:
        NotFound: UNKNOWN_ENGINE.
    """
    if engine_ids and engine not in engine_ids:
        raise unknown_engine(engine, engine_ids[0])


def unknown_engine(engine: str, named: str) -> NotFound:
    """Build the refusal for a name of another engine."""
    return NotFound(
        f'no engine "{named}" here: this is engine "{engine}", called without a gateway',
        reason="UNKNOWN_ENGINE",
        metadata={"engine": named},
    )


def model_infos(view: ModelView, engine_ids: Sequence[str]) -> list[ModelInfo]:
    """Return the model on each engine addressed: this one, and a failure for each other name."""
    strangers = [each for each in dict.fromkeys(engine_ids) if each != view.engine]
    return [MODEL.to_wire(view), *(_stranger(view, each) for each in strangers)]


def adapter_infos(view: AdapterView, engine_ids: Sequence[str]) -> list[AdapterInfo]:
    """Return an adapter on each engine addressed: this one, and a failure for each other name."""
    infos = [ADAPTER.to_wire(view)]
    for named in dict.fromkeys(engine_ids):
        if named != view.engine:
            infos.append(AdapterInfo(model_name=view.model_name, engine=named))
            fill_status(unknown_engine(view.engine, named), infos[-1].failure)
    return infos


def _stranger(view: ModelView, named: str) -> ModelInfo:
    info = ModelInfo(model_name=view.model_name, engine=named)
    fill_status(unknown_engine(view.engine, named), info.failure)
    return info
