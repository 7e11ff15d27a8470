"""The logits processors of an engine: named by its operator, chosen by requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace_engine.engine.config.field_checks import refuse
from headrace_engine.errors import FieldViolation
from headrace_engine.generation_config import LogitsProcessor
from headrace_engine.ipc.plans import ProcessorFile
from headrace_engine.model_types import EffectiveConfig

Process = Callable[[Any, Any, Any], None]
"""A processor without a file, for cores in this process: `process(logits, ids, arguments)`, as in a file."""

MAX_ARGUMENTS = 4096
"""Maximum number of arguments of all processors of a request; its effective config retains and returns them."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_NAMES = '1 to 64 of letters, digits, "_", ".", "-", the first a letter, digit or "_"'
_KINDS = (".py", ".cu")
_MOST = (2 - 2.0**-23) * 2.0**127
"""Largest finite float32."""


def read_sources(entries: Iterable[str]) -> dict[str, Path]:
    """Parse processors written NAME=PATH.

    Raises:
        ValueError: an entry is malformed or given twice, or as `check_sources`.
    """
    sources: dict[str, Path] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        if not equals:
            raise ValueError(f'"{entry}" is not NAME=PATH')
        if name in sources:
            raise ValueError(f'"{name}" is given twice; each processor needs a name of its own')
        sources[name] = Path(path)
    check_sources(sources)
    return sources


def check_sources(sources: Mapping[str, Path | str | Process]) -> None:
    """Refuse invalid names, and files that a core could not read.

    Raises:
        ValueError: naming the first of them.
    """
    for name, source in sources.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f'"{name}" is not a valid name of a logits processor; allowed: {_NAMES}')
        if callable(source):
            continue
        path = Path(source)
        if path.suffix not in _KINDS:
            raise ValueError(f'"{path}" is not a logits processor: its name must end with {" or ".join(_KINDS)}')
        if not path.is_file():
            raise ValueError(f'"{path}": no such file')


def processor_files(sources: Mapping[str, Path | str | Process]) -> tuple[ProcessorFile, ...]:
    """Return the processors as sent to cores."""
    pairs = sources.items()
    return tuple(ProcessorFile(name, "" if callable(each) else str(Path(each).resolve())) for name, each in pairs)


def check_processors(chosen: tuple[LogitsProcessor, ...], effective: EffectiveConfig) -> None:
    """Refuse processors that the model does not have, and invalid arguments.

    Raises:
        InvalidArgument: naming every such field.
    """
    fields = [(f"config.logits_processors[{number}]", one) for number, one in enumerate(chosen)]
    unknown = [(f"{field}.name", _unknown(one.name, effective)) for field, one in fields]
    wrong = [(f"{field}.arguments", _wrong(one.arguments)) for field, one in fields]
    too_many = ("config.logits_processors", _too_many(sum(len(one.arguments) for one in chosen)))
    refuse([FieldViolation(field, text) for field, text in (*unknown, *wrong, too_many) if text])


def _unknown(name: str, effective: EffectiveConfig) -> str:
    if name in effective.logits_processors:
        return ""
    if name in effective.idle_processors:
        return f'= "{name}": {effective.idle_processors[name]}; {_known(effective)}'
    return f'= "{name}" is not a logits processor of this engine; {_known(effective)}'


def _known(effective: EffectiveConfig) -> str:
    names = ", ".join(effective.logits_processors)
    return f"allowed: {names}" if names else "it was started with none (--logits-processor NAME=PATH)"


def _too_many(count: int) -> str:
    return f"has {count} arguments in all; allowed: at most {MAX_ARGUMENTS}" if count > MAX_ARGUMENTS else ""


def _wrong(arguments: tuple[float, ...]) -> str:
    wrong = next((each for each in arguments if not abs(each) <= _MOST), None)
    return "" if wrong is None else f"holds {wrong}; allowed: finite numbers that float32 can hold"
