"""The peers that the user has installed; bench/PEERS.md says how.

Environment variables name them: HEADRACE_BENCH_LLAMA_SERVER the program llama-server, HEADRACE_BENCH_OPENVINO the
Python that has the package openvino-genai. Models are where `bench_models.py` has them; formats whose files are not
there are left out. Without either, ours is measured alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench_models import BenchModels
from contestants import Contestant
from llama_server import FORMS as LLAMA_FORMS
from llama_server import llama_server
from openvino_peer import FORMS as OPENVINO_FORMS
from openvino_peer import openvino

LLAMA_SERVER, OPENVINO = "HEADRACE_BENCH_LLAMA_SERVER", "HEADRACE_BENCH_OPENVINO"


@dataclass(frozen=True)
class Peers:
    """What is installed.

    Attributes:
        llama_server: the program; None: not there.
        openvino: the Python that has it; None: not there.
        threads: that each computes with.
    """

    models: BenchModels
    llama_server: Path | None
    openvino: Path | None
    threads: int

    @classmethod
    def chosen(cls, models: BenchModels, threads: int) -> Peers:
        """By the environment.

        Raises:
            SystemExit: it names something that is not there.
        """
        return cls(models, _path(LLAMA_SERVER), _path(OPENVINO), threads)

    @property
    def missing(self) -> str:
        """Which peers are not installed, in words; "" where all are."""
        names = [
            name for name, path in (("llama.cpp", self.llama_server), ("OpenVINO GenAI", self.openvino)) if not path
        ]
        return f"without {' and '.join(names)}, which bench/PEERS.md tells how to install" if names else ""

    def of(self, model: str) -> Iterator[tuple[str, AbstractContextManager[Contestant]]]:
        """Each format that there is of a model at each peer, and what starts it."""
        for name, form in LLAMA_FORMS.items():
            file = self.models.gguf(model, name)
            if self.llama_server and file.exists():
                yield name, llama_server(self.llama_server, file, model, form, self.threads)
        for name, form in OPENVINO_FORMS.items():
            folder = self.models.openvino(model, name)
            if self.openvino and folder.exists():
                yield name, openvino(self.openvino, folder, model, form, self.threads)


def _path(variable: str) -> Path | None:
    text = os.environ.get(variable)
    if not text:
        return None
    if not Path(text).exists():
        raise SystemExit(f"{variable}: {text} is not there")
    return Path(text)
