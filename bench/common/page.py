"""The pages of results/: sections that commands write, each between its own marks, among text written by hand."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
"""Folder of pages and raw results."""


@dataclass(frozen=True)
class Section:
    """A section of a page that a command writes. Text outside of such sections is written by hand.

    Attributes:
        page: file in RESULTS.
        name: its name, unique within the page.
        command: command that writes it.
    """

    page: str
    name: str
    command: str

    def replaced(self, page: str, text: str) -> str:
        """Return the page with the section's text replaced.

        Raises:
            ValueError: the page has no such section.
        """
        first, last = f"<!-- {self.name}: written by `{self.command}` -->", f"<!-- {self.name}: end -->"
        before, begin, rest = page.partition(first)
        _, end, after = rest.partition(last)
        if not (begin and end):
            raise ValueError(f"{self.page} has no lines {first} and {last}")
        return f"{before}{begin}\n\n### Written by `{self.command}`\n\n{text}\n\n{end}{after}"

    def write(self, text: str) -> None:
        """Replace the section's text in the page.

        Raises:
            ValueError: the page has no such section.
        """
        path = RESULTS / self.page
        path.write_text(self.replaced(path.read_text(encoding="utf-8"), text), encoding="utf-8")


SERVICE = Section("service.md", "service", "make bench-service")
STARTUP = Section("service.md", "startup", "make bench-startup")
VOCABULARIES = Section("service.md", "vocabularies", "make bench-vocabularies")
PREFIX = Section("service.md", "prefix", "make bench-prefix")
FLOOD = Section("service.md", "flood", "make bench-flood")
CROWD = Section("service.md", "crowd", "make soak")
ROUTING = Section("routing.md", "routing", "make bench-routing")
STREAMS = Section("scheduling.md", "streams", "make bench-streams")
SCHEDULING = Section("scheduling.md", "scheduling", "make bench-scheduling")
SOAK = Section("memory.md", "soak", "make bench-soak")
ACCURACY = Section("accuracy.md", "accuracy", "make bench-accuracy")
ANSWERS = Section("accuracy.md", "answers", "make bench-accuracy")
CPU = Section("cpu.md", "cpu", "make bench-cpu")
MIXTURE = Section("cpu.md", "mixture", "python -m bench.cpu.mixture")
ADAPTERS = Section("cpu.md", "adapters", "python -m bench.cpu.adapters")
GEMMA_PERPLEXITY = Section("cpu.md", "gemma-perplexity", "python -m bench.cpu.gemma perplexity")
GEMMA_COST = Section("cpu.md", "gemma-cost", "python -m bench.cpu.gemma cost")
SPECULATION = Section("speculation.md", "speculation", "make bench-speculation")
DRAFT_MODEL = Section("speculation.md", "draft model", "make bench-speculation")
RANKS = Section("ranks.md", "ranks", "python -m bench.ranks")
CPU_RANKS = Section("ranks.md", "ranks-cpu", "python -m bench.ranks --backend cpu")
GPU = Section("gpu.md", "gpu", "make gpu-check")
GPU_PREDICTED = Section("gpu.md", "gpu-predicted", "python -m bench.gpu.check --predict")
GPU_CASES = Section("gpu.md", "gpu-bench", "make gpu-bench")
GPU_KERNELS = Section("gpu.md", "gpu-kernels", "make cuda-report")
SECTIONS = (
    *(SERVICE, STARTUP, VOCABULARIES, PREFIX, FLOOD, CROWD, ROUTING, STREAMS, SCHEDULING, SOAK, ACCURACY, ANSWERS, CPU),
    *(MIXTURE, ADAPTERS, GEMMA_PERPLEXITY, GEMMA_COST, SPECULATION, RANKS, CPU_RANKS, GPU, GPU_PREDICTED, GPU_CASES),
    GPU_KERNELS,
)


def measurement(about: str | None) -> argparse.ArgumentParser:
    """Return the parser of a command that measures and then writes, unless `write` is off.

    Args:
        about: description of what it measures: the module's docstring.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-write", dest="write", action="store_false", help="print only; write no files")
    return parser
