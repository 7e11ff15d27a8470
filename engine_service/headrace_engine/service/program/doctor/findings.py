"""Findings of the doctor, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_MARKS = {True: "ok", False: "NO", None: "-"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine, or about what the command line names.

    Attributes:
        subject: what it is about, such as "processor".
        text: what was found; where it does not work, why, and what to do.
        works: False: the engine of this command line would not work; None: nothing that it needs.
        facts: the same for programs, in bytes and numbers.
    """

    subject: str
    text: str
    works: bool | None = True
    facts: dict[str, Any] = field(default_factory=dict)


def all_work(findings: Sequence[Finding]) -> bool:
    """Return True if nothing was found that does not work."""
    return all(finding.works is not False for finding in findings)


def as_table(findings: Sequence[Finding]) -> str:
    """Return a line for each finding. Characters that a terminal would obey are escaped."""
    width = max((len(finding.subject) for finding in findings), default=0)
    return "\n".join(_lines(findings, width))


def as_json(findings: Sequence[Finding]) -> str:
    """Return the findings as one JSON object."""
    return json.dumps({"works": all_work(findings), "findings": [asdict(each) for each in findings]}, indent=2)


def _lines(findings: Sequence[Finding], width: int) -> Iterator[str]:
    for finding in findings:
        yield f"{_MARKS[finding.works]:2}  {_shown(finding.subject):{width}}  {_shown(finding.text)}"


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
