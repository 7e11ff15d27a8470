"""Peers that the user has installed as in bench/peers/README.md.

Environment variables name them: HEADRACE_BENCH_LLAMA_SERVER the program llama-server, HEADRACE_BENCH_OPENVINO the
Python in which openvino-genai is installed. Models are those of `bench.common.models`; formats without files are left
out. Without peers, only ours is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.common.environment import LLAMA_SERVER, OPENVINO, installed
from bench.common.models import BenchModels
from bench.peers.contestant import Contestant
from bench.peers.llama_server import FORMS as LLAMA_FORMS
from bench.peers.llama_server import llama_server
from bench.peers.openvino_peer import FORMS as OPENVINO_FORMS
from bench.peers.openvino_peer import openvino


@dataclass(frozen=True)
class Peers:
    """The installed peers.

    Attributes:
        llama_server: the program; None: not installed.
        openvino: the Python in which it is installed; None: not installed.
        threads: number of threads of each.
    """

    models: BenchModels
    llama_server: Path | None
    openvino: Path | None
    threads: int

    @classmethod
    def chosen(cls, models: BenchModels, threads: int) -> Peers:
        """Return the peers that the environment names.

        Raises:
            SystemExit: a path does not exist.
        """
        return cls(models, installed(LLAMA_SERVER), installed(OPENVINO), threads)

    @property
    def missing(self) -> str:
        """Return text that names the peers not installed; "" if all are."""
        names = [
            name for name, path in (("llama.cpp", self.llama_server), ("OpenVINO GenAI", self.openvino)) if not path
        ]
        return f"without {' and '.join(names)}, which are installed as bench/peers/README.md says" if names else ""

    def of(self, model: str) -> Iterator[tuple[str, AbstractContextManager[Contestant]]]:
        """Return each peer's available formats of a model, and functions that start them."""
        for name, form in LLAMA_FORMS.items():
            file = self.models.gguf(model, name)
            if self.llama_server and file.exists():
                yield name, llama_server(self.llama_server, file, model, form, self.threads)
        for name, form in OPENVINO_FORMS.items():
            folder = self.models.openvino(model, name)
            if self.openvino and folder.exists():
                yield name, openvino(self.openvino, folder, model, form, self.threads)
