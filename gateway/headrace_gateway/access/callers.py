"""The caller of the current call."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from headrace_gateway import status
from headrace_gateway.access.api_keys import ApiKey


@dataclass(frozen=True)
class Caller:
    """Who calls.

    Attributes:
        key: its API key; None where the gateway has no keys: then all callers are one owner, with an empty name.
    """

    key: ApiKey | None = None

    @property
    def owner(self) -> str:
        """The owner of its requests."""
        return "" if self.key is None else self.key.owner

    def may_see(self, model_name: str) -> bool:
        """True if it may know of a model. An engine that does not answer is listed as a model without a name."""
        return self.key is None or not model_name or self.key.allows(model_name)

    @property
    def reads_metrics(self) -> bool:
        """True if it may know what others use."""
        return self.key is None or self.key.admin or self.key.metrics

    def sign(self, message: Any, path: str = "owner") -> None:
        """Set the owner of a message that has one.

        Raises:
            CallError: the message names another owner: NOT_SUPPORTED without keys, otherwise NOT_ALLOWED.
        """
        if "owner" not in message.DESCRIPTOR.fields_by_name:
            return
        if message.owner and message.owner != self.owner:
            named = f'= "{status.shorten(message.owner)}"'
            if self.key is None:
                text = f"{named} is not supported: all clients of a gateway without API keys are one owner"
                raise status.invalid_field(path, text, reason="NOT_SUPPORTED")
            raise status.not_allowed(path, f'{named} is another owner than that of this API key, "{self.owner}"')
        message.owner = self.owner


ANYONE = Caller()

_current: ContextVar[Caller] = ContextVar("headrace-gateway-caller", default=ANYONE)


def note(caller: Caller) -> None:
    """Record the caller of the current call."""
    _current.set(caller)


def current() -> Caller:
    """Return the caller of the current call; ANYONE outside calls and without keys."""
    return _current.get()
