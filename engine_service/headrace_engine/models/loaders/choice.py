"""Choose one file among several by the prefix of its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from headrace_engine.errors import BadModel
from headrace_engine.models.layout import name_some


def one_file(names: Sequence[str], prefix: str, location: str, kind: str = "GGUF file") -> str:
    """Return the file named by the prefix: by an exact match, else the only one whose name starts with it.

    Args:
        names: names of the files.
        location: where they are, for messages.
        kind: what they are, for messages.

    Raises:
        BadModel: there is none, or more than one; lists them.
    """
    begun = [name for name in sorted(names) if name.startswith(prefix)]
    exact = [name for name in begun if prefix in (name, PurePath(name).stem)]
    if len(exact or begun) == 1:
        return (exact or begun)[0]
    begin = f" that begins with {prefix!r}" if prefix else ""
    if not begun:
        raise BadModel(f"{location}: no {kind}{begin}")
    listed = name_some(begun)
    raise BadModel(f"{location}: more than one {kind}{begin}: {listed}. Set file_prefix to the beginning of one name")
