"""OpenVINO GenAI as a contestant: a process of the Python in which it is installed, driven over pipes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.contestant import Contestant, Form
from bench.peers.workloads import Answer, Prompts

FORMS = {"int4": Form("int4", 4), "int8": Form("int8", 8)}
_WORKER = Path(__file__).with_name("openvino_worker.py")


class OpenVino(Contestant):
    """A running pipeline of OpenVINO GenAI."""

    who = "OpenVINO GenAI"

    def __init__(self, model: str, form: Form, process: subprocess.Popen[str]) -> None:
        self.model, self.form, self._process = model, form, process

    def answer(self, prompts: Prompts, new: int) -> Answer:
        """See Contestant. Times are taken in its own process, without the pipes."""
        assert self._process.stdin is not None
        print(json.dumps({"prompts": prompts, "new": new}), file=self._process.stdin, flush=True)
        return Answer([[(at, count) for at, count in arrivals] for arrivals in json.loads(_line(self._process))])


@contextmanager
def openvino(python: Path, folder: Path, model: str, form: Form, threads: int) -> Iterator[OpenVino]:
    """Run a pipeline of a model's folder.

    Raises:
        RuntimeError: it does not start.
    """
    command = [str(python), str(_WORKER), str(folder), str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            while _line(process).strip() != "ready":
                pass
            yield OpenVino(model, form, process)
        finally:
            process.terminate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"OpenVINO's process ended: {process.args!r}")
    return line
