"""Restricts the model hubs that callers may name.

The engine itself contacts the hub, from within its network and with its operator's token. So callers may only choose
among the hubs that the operator has named.
"""

from __future__ import annotations

from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.environment import hub_endpoint
from headrace_engine.errors import InvalidArgument, shown

_PUBLIC = "https://huggingface.co"


def check_hub(hub: str, options: EngineOptions, field: str = "config.hub") -> None:
    """Refuse a hub that the engine's operator did not name.

    Args:
        hub: address of the hub; "" is the engine's own.
        field: path of the field that gave it.

    Raises:
        InvalidArgument: the hub is not allowed.
    """
    if hub and not options.allow_hub:
        raise InvalidArgument.field(field, f"= {shown(hub)}: hub access is disabled (--no-hub)")
    if hub and options.hubs is not None and _plain(hub) not in map(_plain, (own_hub(), *options.hubs)):
        text = "is not an allowed hub; leave it out to use the engine's own; its operator allows others with --hub URL"
        raise InvalidArgument.field(field, f"= {shown(hub)} {text}")


def own_hub() -> str:
    """Return the default hub: that of HF_ENDPOINT, as huggingface_hub reads it."""
    return hub_endpoint() or _PUBLIC


def _plain(address: str) -> str:
    return address.rstrip("/")
