"""Generates the client's dataclass of statistics, and the metrics that servers make of them."""

from __future__ import annotations

from typing import Any

from fieldgen.client import python_words, wrapped
from fieldgen.contract import PYTHON_TYPES, Contract, first_clause, is_duration

_HEAD = '''\
"""Statistics of engines. Made by `make fields` from the wire contract."""

from __future__ import annotations

from dataclasses import dataclass

from headrace._types.models import ModelState


@dataclass(frozen=True, slots=True)
class EngineStat:
    """{comment}

    Attributes:
{manual}
    """

{fields}
'''


_METRICS = '''\
"""Names under which statistics of a model are metrics, of an engine and of a gateway.

Made by `make fields` from the wire contract.
"""

from __future__ import annotations

GAUGES = {{
{gauge}
}}
"""Gauges by name, which has `headrace_` before it: field of EngineStat, and what it says."""

COUNTERS = {{
{counter}
}}
"""Counters by name, since the start of the engine's run; Prometheus' names end with _total."""
'''


def metrics(contract: Contract) -> str:
    """Return the module `headrace_proto.pure.stat_metrics`."""
    tables: dict[str, list[str]] = {"gauge": [], "counter": []}
    for field in contract.message("EngineStat").fields:
        metric = contract.metric(field)
        if kind := metric.WhichOneof("kind"):
            text = first_clause(contract.comment(field))
            tables[kind].append(f'    "{getattr(metric, kind)}": ("{field.name}", "{text}"),')
    return _METRICS.format(**{kind: "\n".join(lines) for kind, lines in tables.items()})


def engine_stat(contract: Contract) -> str:
    """Return the module `headrace._types.engine_stat`."""
    message = contract.message("EngineStat")
    lines = [f"{field.name}: {_words(contract, field)}{_unit(field)}" for field in message.fields]
    return _HEAD.format(
        comment=wrapped(python_words(contract.comment(message)), 4).strip(),
        manual="\n".join(wrapped(line, 12, 8) for line in lines),
        fields="\n".join(f"    {field.name}: {_hint(field)}" for field in message.fields),
    )


def _words(contract: Contract, field: Any) -> str:
    return python_words(contract.comment(field)).replace("Unset", "None")


def _unit(field: Any) -> str:
    """Return the unit of a time, which is a number in Python."""
    if field.message_type is None:
        return ""
    return " In ms." if is_duration(field) else " In ms since the epoch."


def _hint(field: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.name)
    kind = "float" if field.message_type is not None else PYTHON_TYPES.get(field.cpp_type, "int")
    return f"{kind} | None" if field.has_presence else kind
