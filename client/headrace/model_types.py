"""Data types that the methods about models and servers return."""

from headrace._types.engine_stat import EngineStat
from headrace._types.models import (
    AdapterInfo,
    EffectiveConfig,
    ModelDescription,
    ModelInfo,
    ModelProgress,
    SerializedModel,
    SerializeStep,
)
from headrace._types.servers import Detokenized, EngineInfo, ServerInfo, Tokenized

__all__ = [
    "AdapterInfo",
    "Detokenized",
    "EffectiveConfig",
    "EngineInfo",
    "EngineStat",
    "ModelDescription",
    "ModelInfo",
    "ModelProgress",
    "SerializeStep",
    "SerializedModel",
    "ServerInfo",
    "Tokenized",
]
