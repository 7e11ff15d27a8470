"""The architectures that Headrace computes."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.errors import BadModel, shown
from headrace_engine.models.families.family import Family
from headrace_engine.models.families.gemma import GEMMA, GEMMA1
from headrace_engine.models.families.glm import CHATGLM, GLM
from headrace_engine.models.families.granite import GRANITE, GRANITE4, GRANITE_MOE, MINICPM, MINICPM3
from headrace_engine.models.families.layer_norm import COMMAND_R, PHI, STABLELM, STARCODER2
from headrace_engine.models.families.llama import ERNIE, EXAONE, INTERNLM2, LLAMA, SEED_OSS
from headrace_engine.models.families.mistral import MISTRAL
from headrace_engine.models.families.mixtures.corrected_moe import DOTS, ERNIE_MOE, GLM_MOE, MINIMAX
from headrace_engine.models.families.mixtures.deepseek import DEEPSEEK
from headrace_engine.models.families.mixtures.gpt_oss import GPT_OSS
from headrace_engine.models.families.mixtures.mixtral import MIXTRAL, OLMOE, PHIMOE
from headrace_engine.models.families.mixtures.qwen_moe import QWEN_MOE
from headrace_engine.models.families.neox import FALCON, NEOX
from headrace_engine.models.families.olmo import OLMO
from headrace_engine.models.families.phi3 import PHI3
from headrace_engine.models.families.qwen import QWEN2, QWEN3
from headrace_engine.models.families.text_parts import (
    GEMMA_VISION,
    LLAVA,
    MLLAMA_TEXT,
    PHI3_VISION,
    QWEN_MOE_VISION,
    QWEN_VISION,
)

__all__ = ["ARCHITECTURES", "GGUF_ARCHITECTURES", "family_of", "family_of_gguf"]

_FAMILIES = (
    CHATGLM, COMMAND_R, DEEPSEEK, DOTS, ERNIE, ERNIE_MOE, EXAONE, FALCON, GEMMA, GEMMA1, GLM, GLM_MOE, GPT_OSS,
    GRANITE, GRANITE4, GRANITE_MOE, INTERNLM2, LLAMA, MINICPM, MINICPM3, MINIMAX, MISTRAL, MIXTRAL, NEOX, OLMO,
    OLMOE, PHI, PHI3, PHIMOE, QWEN2, QWEN3, QWEN_MOE, SEED_OSS, STABLELM, STARCODER2, GEMMA_VISION, LLAVA,
    MLLAMA_TEXT, PHI3_VISION, QWEN_MOE_VISION, QWEN_VISION,
)  # fmt: skip

ARCHITECTURES: Mapping[str, Family] = {name: family for family in _FAMILIES for name in family.from_config}
"""Families by the name in config.json's `architectures`."""

GGUF_ARCHITECTURES: Mapping[str, Family] = {name: family for family in _FAMILIES for name in family.from_metadata}
"""Families by the name in a GGUF file's `general.architecture`."""


def family_of(architecture: str, source: str) -> Family:
    """Return the family of an architecture named in a config.

    Raises:
        BadModel: it is unknown; lists those that are supported.
    """
    return _find(ARCHITECTURES, architecture, source)


def family_of_gguf(architecture: str, source: str) -> Family:
    """Return the family of an architecture named in GGUF metadata.

    Raises:
        BadModel: it is unknown; lists those that are supported.
    """
    return _find(GGUF_ARCHITECTURES, architecture, source)


def _find(families: Mapping[str, Family], architecture: str, source: str) -> Family:
    family = families.get(architecture)
    if family is None:
        known = ", ".join(sorted(families))
        raise BadModel(f"{source}: architecture {shown(architecture)} is not supported; supported are {known}")
    return family
