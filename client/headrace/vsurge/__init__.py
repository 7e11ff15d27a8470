"""The API of vSurge, EasyDeL's engine.

    from headrace import vsurge as ed

    model = ed.AutoEasyDeLModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
    surge = ed.vSurge.from_model(model=model, processor=None)
    surge.start()
    samples = await surge.generate(prompts=["Once upon a time"], sampling_params=ed.SamplingParams(max_tokens=30))

docs/migrating-from-vsurge.md says what differs, and why.
"""

from typing import Any

from headrace.compat.counterparts import refuse_name
from headrace.vsurge import jax
from headrace.vsurge.generation import Generation, ReturnSample
from headrace.vsurge.model import (
    AttentionMechanisms,
    AutoEasyDeLModelForCausalLM,
    EasyDeLBaseConfigDict,
    EasyDeLGradientCheckPointers,
    EasyDeLQuantizationMethods,
    PartitionAxis,
)
from headrace.vsurge.sampling_params import SamplingParams
from headrace.vsurge.surge import vSurge

__all__ = [
    "AttentionMechanisms",
    "AutoEasyDeLModelForCausalLM",
    "EasyDeLBaseConfigDict",
    "EasyDeLGradientCheckPointers",
    "EasyDeLQuantizationMethods",
    "Generation",
    "PartitionAxis",
    "ReturnSample",
    "SamplingParams",
    "jax",
    "vSurge",
]

_ENGINE = "vSurge.from_model makes driver and engine in one"
_SERVER = "start servers with headrace-engine and headrace-gateway, or make run"

_REFUSED = {
    "vDriver": _ENGINE,
    "vEngine": _ENGINE,
    "oDriver": _ENGINE,
    "oEngine": _ENGINE,
    "vSurgeRequest": "give prompts and sampling_params to generate",
    "vSurgeApiServer": _SERVER,
    "vInference": "use vSurge",
    "vInferenceApiServer": _SERVER,
    "eSurge": "use vSurge",
    "EasyDeLPlatforms": "the engine's backend chooses its kernels",
    "EasyDeLBackends": 'give compute_unit="CPU" or "CUDA" to from_pretrained',
    "AutoEasyDeLModel": "use AutoEasyDeLModelForCausalLM",
    "AutoEasyDeLModelForImageTextToText": "models with images are not served",
}


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _REFUSED)
