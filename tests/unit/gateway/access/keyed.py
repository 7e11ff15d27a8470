"""A gateway that asks for keys, in front of scripted engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace_gateway.access.api_keys import new_key
from unit.gateway.conftest import Front, World

Auth = tuple[tuple[str, str], ...]


class Keyed:
    """Adds keys to a key file, and starts gateways with it.

    Args:
        world: ends the gateways.
        file: the key file.
    """

    def __init__(self, world: World, file: Path) -> None:
        self._world, self._file = world, file
        file.touch()

    def key(self, name: str, **fields: Any) -> Auth:
        """Add a key; return the metadata that sends it."""
        key, lines = new_key(name)
        text = "".join(f"{field} = {_toml(value)}\n" for field, value in fields.items())
        with self._file.open("a") as file:
            file.write(lines + text)
        return (("authorization", f"Bearer {key}"),)

    def change(self, old: str, new: str) -> None:
        """Replace a text of the file."""
        text = self._file.read_text()
        assert old in text
        self._file.write_text(text.replace(old, new))

    async def gateway(self, **more: Any) -> Front:
        """Start a gateway."""
        return await self._world.gateway(keys_file=self._file, **more)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
