"""The fields of a runtime config that speak of LoRA adapters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from headrace_engine.config import Adapter, RuntimeConfig
from headrace_engine.errors import InvalidArgument

DEFAULT_RANK = 64
"""Largest rank of adapters where there is room for some, and neither the config nor an adapter names one."""

_NAME = re.compile(r"[A-Za-z0-9._/:-]{1,128}")


def check_adapters(config: RuntimeConfig) -> None:
    """Refuse adapters without a valid name or path, and limits that contradict them.

    Raises:
        InvalidArgument: naming the field.
    """
    for number, adapter in enumerate(config.adapters):
        check_adapter(adapter, f"config.adapters[{number}].")
    twice = [name for name, count in Counter(each.name for each in config.adapters).items() if count > 1]
    if twice:
        raise InvalidArgument.field("config.adapters", f"name {twice[0]!r} twice; each adapter needs a name of its own")
    count, most = len(config.adapters), config.lora_max_num
    if most is not None and count > most:
        raise InvalidArgument.field("config.lora_max_num", f"= {most}, but adapters has {count} entries")
    if config.lora_max_rank and not (count if most is None else most):
        text = f"= {config.lora_max_rank} is set, but there is no room for an adapter: set lora_max_num"
        raise InvalidArgument.field("config.lora_max_rank", text)


def check_adapter(adapter: Adapter, prefix: str) -> None:
    """Refuse an adapter without a valid name or path.

    Args:
        prefix: path of its fields in the request.

    Raises:
        InvalidArgument: naming the field.
    """
    if not _NAME.fullmatch(adapter.name):
        allowed = 'allowed: 1 to 128 of letters, digits, ".", "_", "-", "/", ":"'
        raise InvalidArgument.field(f"{prefix}name", f"= {adapter.name!r} is not a valid name; {allowed}")
    if not adapter.path:
        raise InvalidArgument.field(f"{prefix}path", "is not set: give a directory that PEFT wrote, or a GGUF file")


def adapter_capacity(config: RuntimeConfig, ranks: Collection[int]) -> tuple[int, int]:
    """Return how many adapters may be loaded at once, and their largest rank.

    Args:
        ranks: those of the adapters in the config.
    """
    count = len(config.adapters) if config.lora_max_num is None else config.lora_max_num
    if not count:
        return 0, 0
    if config.lora_max_rank is not None:
        return count, config.lora_max_rank
    return count, max(ranks, default=DEFAULT_RANK)
