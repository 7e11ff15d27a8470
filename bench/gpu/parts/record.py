"""Results of `make gpu-bench`: one JSON object per line, and the page of each case's newest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.common.page import RESULTS
from bench.gpu.parts.cases import Case
from bench.gpu.parts.expected import Expected, Limits
from bench.gpu.report import table

RECORDS = RESULTS / "gpu-bench.jsonl"


@dataclass(frozen=True)
class Record:
    """Measurement of one case on a card.

    Attributes:
        card: name of the card.
        date: "2026-11-28 14:00 UTC".
        code: digest of the measured code.
        limits: limits of the card, measured in the same run.
        figures: figures by name and unit.
        error: why there are no figures; "" if there are.
    """

    card: str
    date: str
    part: str
    case: str
    code: str
    limits: Limits
    figures: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


def append(path: Path, record: Record) -> None:
    """Append a record. If the process is killed, the last line may be cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if cut else "") + json.dumps(asdict(record)) + "\n")


def read(path: Path) -> list[Record]:
    """Return all records, oldest first, without lines that were cut off."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: str) -> Record | None:
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return Record(**{**fields, "limits": tuple(fields["limits"])})


def page(parts: Mapping[str, Sequence[Case]], records: Iterable[Record], limits: Limits) -> str:
    """Return a table per part: the newest record of each case, and the expectations of cases without one.

    Args:
        limits: limits of a card, for cases not measured yet.
    """
    newest = {(record.part, record.case): record for record in records}
    return "\n\n".join(
        f"**{part}**\n\n{part_table(cases, {case: newest.get((part, case.name)) for case in cases}, limits)}"
        for part, cases in parts.items()
        if cases
    )


def part_table(cases: Sequence[Case], records: Mapping[Case, Record | None], limits: Limits) -> str:
    """Return a table of each figure with its limit and its prediction."""
    heads = ["case", "figure", "limit", "predicted", "measured", "percent of the limit", "card", "date"]
    rows = [row for case in cases for row in _rows(case, records[case], limits)]
    return table(heads, rows)


def _rows(case: Case, record: Record | None, limits: Limits) -> list[list[str]]:
    expected = case.expect(record.limits if record else limits)
    if record is not None and record.error:
        return [[case.name, "", "", "", f"failed: {record.error.splitlines()[-1][:100]}", "", record.card, record.date]]
    names = list(record.figures if record else expected)
    if not names:
        return [[case.name, *["–"] * 4, "–", "–", "–"]]
    return [_row(case.name, name, expected.get(name, Expected(None, None)), record) for name in names]


def _row(case: str, name: str, expected: Expected, record: Record | None) -> list[str]:
    measured = record.figures[name] if record else None
    share = None
    if measured and expected.limit is not None:
        share = measured / expected.limit if name.endswith("/s") else expected.limit / measured
    numbers = [_number(value) for value in (expected.limit, expected.predicted, measured)]
    percent = "–" if share is None else f"{100 * share:.0f}"
    return [case, name, *numbers, percent, *((record.card, record.date) if record else ("–", "–"))]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
