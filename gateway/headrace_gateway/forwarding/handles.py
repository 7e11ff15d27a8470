"""The parts of a request's handle."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_gateway import status


@dataclass(frozen=True)
class Handle:
    """The parts of a handle "engine/instance/id".

    Attributes:
        engine: name of the engine in the gateway's list.
        instance: id of the engine's run that has the request.
        id: id of the request within that run.
    """

    engine: str
    instance: str
    id: str

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Parse a handle.

        Raises:
            CallError: UNKNOWN_REQUEST if it does not have three parts.
        """
        if not is_handle(text):
            raise status.unknown_request(text)
        return cls(*text.split("/"))


def is_handle(text: str) -> bool:
    """True if a text has the three parts of a handle."""
    parts = text.split("/")
    return len(parts) == 3 and all(parts)
