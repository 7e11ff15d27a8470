"""The architectures that Headrace computes."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

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

_LONGEST_LIST, _LONGEST_NAME, _NEAR = 400, 64, 4
"""Characters of a list in a message, and of a name that is compared; names of a list that would be longer."""


def family_of(architecture: str, source: str) -> Family:
    """Return the family of an architecture named in a config.

    Raises:
        BadModel: it is unknown; lists some that are supported.
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
        text = f"architecture {shown(architecture)} is not supported; supported are {_listed(families, architecture)}"
        raise BadModel(f"{source}: {text}")
    return family


def _listed(known: Mapping[str, Family], wanted: str) -> str:
    """Return the names of architectures if they fit into a message, else those that are most like the one wanted."""
    text = ", ".join(sorted(known))
    if len(text) <= _LONGEST_LIST:
        return text
    near = get_close_matches(wanted[:_LONGEST_NAME], sorted(known), n=_NEAR, cutoff=0)
    return f"{', '.join(near)} and {len(known) - len(near)} more, which docs/models.md lists"
