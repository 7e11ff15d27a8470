"""The pipeline of LMDeploy and its configs.

    from headrace.lmdeploy import GenerationConfig, pipeline

    pipe = pipeline("HuggingFaceTB/SmolLM2-135M-Instruct")
    print(pipe(["Hi, pls intro yourself", "Shanghai is"], gen_config=GenerationConfig(top_k=40)))

docs/migrating-from-lmdeploy.md says what differs, and why.
"""

from typing import Any

from headrace.compat.counterparts import refuse_name
from headrace.lmdeploy.chat_template import ChatTemplateConfig
from headrace.lmdeploy.engine_configs import PytorchEngineConfig, TurbomindEngineConfig
from headrace.lmdeploy.generation_config import GenerationConfig
from headrace.lmdeploy.pipe import Pipeline, pipeline
from headrace.lmdeploy.response import Response

__all__ = [
    "ChatTemplateConfig",
    "GenerationConfig",
    "Pipeline",
    "PytorchEngineConfig",
    "Response",
    "TurbomindEngineConfig",
    "pipeline",
]

_REFUSED = {
    "serve": "start servers with headrace-engine and headrace-gateway, or make run",
    "client": "headrace.Client is the client of a server",
    "Tokenizer": "use tokenize and detokenize of headrace.Client, or pipeline(…).client",
    "VisionConfig": "models with images are not served",
}


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _REFUSED)
