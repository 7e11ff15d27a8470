"""The results of `python -m bench.cpu`: as JSON, and as its section of results/cpu.md."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.common.machine import cpu_name
from bench.common.page import CPU, RESULTS
from bench.cpu import chart, tables
from bench.cpu.rounds import Series
from bench.kernels.limits import Limits

_JSON = RESULTS / "cpu.json"
_CHART = RESULTS / "cpu.png"


class Results:
    """Results of all parts on one machine.

    Attributes:
        content: as stored.
        peers: text that names the missing peers.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.peers = ""

    @classmethod
    def of_this_machine(cls, *, whole: bool) -> Results:
        """Return the stored results of this machine; empty if they are to be replaced, or not written at all.

        Raises:
            SystemExit: the stored results are of another machine, and only some parts are to be measured.
        """
        machine = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0))}
        if whole or not _JSON.exists():
            return cls({"machine": machine, "runs": {}, "comparisons": []})
        content = json.loads(_JSON.read_text(encoding="utf-8"))
        if content["machine"] != machine:
            raise SystemExit(f"{_JSON} is of {content['machine']}; measure all parts of this one, {machine}")
        return cls(content)

    def begin(self, part: str, limits: Limits, rounds: int) -> None:
        """Note that a part is about to be measured."""
        date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        self.content["date"], self.content["limits"] = date, asdict(limits)
        self.content["runs"][part] = {"date": date, "rounds": rounds, "limits": asdict(limits), "missing": self.peers}

    def put(self, part: str, found: Any) -> None:
        """Store the results of a part."""
        self.content[part] = found

    def put_comparison(
        self, workload: str, rows: Sequence[dict[str, Any]], series: Sequence[Series], limits: Limits
    ) -> None:
        """Store the results of a workload, replacing its rows."""
        others = [row for row in self.content["comparisons"] if row["workload"] != workload]
        self.content["comparisons"] = sorted([*others, *rows], key=lambda row: str(row["workload"]))
        self.content["runs"][workload]["limits"] = asdict(limits)
        self.content.setdefault("series", {})[workload] = [_kept(one) for one in series]

    def text(self) -> str:
        """Return the results as Markdown."""
        return tables.text(self.content)

    def write(self) -> None:
        """Write the JSON, the chart, and the section of results/cpu.md."""
        _JSON.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        chart.draw(self.content, _CHART)
        CPU.write(self.text())


def _kept(series: Series) -> dict[str, Any]:
    medians = {metric: series.middle(metric) for metric in series.values}
    return {**asdict(series), "medians": medians, "rounds": len(series.others), "disturbed": series.disturbed}
