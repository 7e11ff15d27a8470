"""The Python API of DashInfer, over Headrace's client.

    from headrace import allspark
    from headrace.allspark.engine import *

    engine = allspark.Engine()  # in this process; Engine("host:7070") for a server
    model = allspark.HuggingFaceModel("/models/SmolLM2-135M-Instruct", "smol").load_model().serialize_to_memory(engine)
    config = model.create_reference_runtime_config_builder("smol", TargetDevice.CPU, [0], max_batch=8).build()
    engine.install_model(config)
    engine.start_model("smol")
    settings = model.create_reference_generation_config_builder(config)
    status, handle, queue = engine.start_request_text("smol", model, "Once upon a time", settings)

Configs are built without an engine too: `client.start_request("smol", "Hi", **ASGenerationConfigBuilder().build())`.
`docs/migrating-from-dashinfer.md` says what maps to what, and what differs.
"""

from typing import Any

from headrace._streaming.result_queue import ResultQueue
from headrace.allspark.engine import Engine
from headrace.allspark.generation_config import ASGenerationConfigBuilder, MultiMediaInfo
from headrace.allspark.model_loader import LLM, DashInferModel, HuggingFaceModel
from headrace.allspark.prompt_utils import PromptTemplate
from headrace.allspark.runtime_config import AsCacheMode, AsModelConfig, AsModelRuntimeConfigBuilder, TargetDevice
from headrace.allspark.status import AsStatus
from headrace.types import GeneratedElements
from headrace.types import GenerateStatus as GenerateRequestStatus

__all__ = [
    "LLM",
    "ASGenerationConfigBuilder",
    "AsCacheMode",
    "AsModelConfig",
    "AsModelRuntimeConfigBuilder",
    "AsStatus",
    "DashInferModel",
    "Engine",
    "GenerateRequestStatus",
    "GeneratedElements",
    "HuggingFaceModel",
    "MultiMediaInfo",
    "PromptTemplate",
    "ResultQueue",
    "TargetDevice",
]

_SETTINGS = "pass enable_quant, weight_only_quant and a dict as customized_quant_config to serialize"

_REFUSED = {
    "ClientEngine": 'Engine("host:port") is a client of an engine in another process',
    "AsEngine": "use Engine",
    "AsEngineStat": "Engine.client.engine_stats returns headrace.model_types.EngineStat",
    "RequestStatInfo": "ResultQueue.RequestStatInfo() returns a dict",
    "QuantizationSettings": _SETTINGS,
    "IQSettings": _SETTINGS,
    "GPTQSettings": _SETTINGS,
    "get_quant_settings_cls": _SETTINGS,
    "ModelSerializerException": "serialize raises exceptions of headrace.errors",
    "VocabType": "the engine knows its model's vocabulary",
    "AsEvictionStrategy": "the cache drops what was not used for longest",
    "AsMHAPrefill": "the backend chooses its kernels",
    "RoPEScaleMethod": 'set it in the runtime config: update({"rope_scaling": {"type": "LINEAR", "factor": 2.0}})',
    "save_allsparky_dltensor_tofile": "numpy.save takes the tensors of results",
    "set_global_header": "there is no counterpart; leave it out",
}
"""Names of DashInfer that are not supported, with what to do instead."""


def __getattr__(name: str) -> Any:
    """Raise the error for a name that is not there; ImportError for those of DashInfer, so that imports show why."""
    if name in _REFUSED:
        raise ImportError(f"{__name__} has no {name}: {_REFUSED[name]}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
