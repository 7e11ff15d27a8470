"""Choosing one file among several by the beginning of its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from headrace_engine.errors import BadModel
from headrace_engine.models.layout import name_some


def one_file(names: Sequence[str], prefix: str, place: str) -> str:
    """The one GGUF file whose name begins with the prefix, or is it.

    Args:
        names: of the GGUF files that are there.
        place: where they are, for messages.

    Raises:
        BadModel: there is none, or more than one; lists them.
    """
    begun = [name for name in sorted(names) if name.startswith(prefix)]
    exact = [name for name in begun if prefix in (name, PurePath(name).stem)]
    if len(exact or begun) == 1:
        return (exact or begun)[0]
    begin = f" that begins with {prefix!r}" if prefix else ""
    if not begun:
        raise BadModel(f"{place}: no GGUF file{begin}")
    listed = name_some(begun)
    raise BadModel(f"{place}: more than one GGUF file{begin}: {listed}. Set file_prefix to the beginning of one name")
