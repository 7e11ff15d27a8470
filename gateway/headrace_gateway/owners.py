"""Owners of requests. Without API keys all clients of a gateway are one owner, whose name is empty."""

from __future__ import annotations

from typing import Any

from headrace_gateway import status


def refuse_owner(message: Any) -> None:
    """Refuse a message that names an owner, since nothing proves that its sender is that owner.

    Raises:
        CallError: NOT_SUPPORTED.
    """
    if "owner" in message.DESCRIPTOR.fields_by_name and message.owner:
        text = f'= "{status.shorten(message.owner)}" is not supported: all clients of a gateway are one owner'
        raise status.invalid_field("owner", text, reason="NOT_SUPPORTED")
