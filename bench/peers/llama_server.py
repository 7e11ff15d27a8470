"""llama.cpp's llama-server: over HTTP on loopback, with 16 slots, prompts as ids, and no prompt cache."""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.servers.ports import free_port

from bench.peers.contestant import Contestant, Form
from bench.peers.workloads import Answer, Prompts, Workload

FORMS = {"Q4_0": Form("Q4_0", 4), "Q4_1": Form("Q4_1", 4), "Q8_0": Form("Q8_0", 8), "BF16": Form("BF16", 16)}
_QUICKEST = FORMS["Q4_0"]
_SLOTS, _LENGTH = 16, 640
_START = 120.0
_TOLD = {"decode": "predicted_per_second", "prefill": "prompt_per_second"}


class LlamaServer(Contestant):
    """A running llama-server."""

    who = "llama.cpp"

    def __init__(self, model: str, form: Form, port: int) -> None:
        self.model, self.form, self._port = model, form, port

    def suits(self, workload: Workload) -> bool:
        """With many requests only in 4 bits: other formats are the slowest of all, far from the best."""
        return len(workload.prompts(0)) == 1 or self.form == _QUICKEST

    def answer(self, prompts: Prompts, new: int) -> Answer:
        """See Contestant. With one request, includes the rates that the server reports."""
        began = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as threads:
            answers = list(threads.map(lambda prompt: self._ask(prompt, new, began), prompts))
        reported = answers[0][1] if len(prompts) == 1 else {}
        return Answer([arrivals for arrivals, _ in answers], reported)

    def _ask(self, prompt: list[int], new: int, began: float) -> tuple[list[tuple[float, int]], dict[str, float]]:
        body = {"prompt": prompt, "n_predict": new, "ignore_eos": True, "temperature": 0, "top_k": 1}
        body |= {"stream": True, "cache_prompt": False, "return_tokens": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        arrivals, last = [], dict[str, Any]()
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                last = json.loads(line[len(b"data: ") :])
                if count := len(last.get("tokens", ())):
                    arrivals.append((time.perf_counter() - began, count))
        connection.close()
        # Ids that end in half a character are not streamed; they come with the end.
        if left := last["timings"]["predicted_n"] - sum(count for _, count in arrivals):
            arrivals.append((time.perf_counter() - began, left))
        return arrivals, {metric: float(last["timings"][name]) for metric, name in _TOLD.items()}


@contextmanager
def llama_server(program: Path, file: Path, model: str, form: Form, threads: int) -> Iterator[LlamaServer]:
    """Run a server of a GGUF file.

    Raises:
        RuntimeError: it does not start.
    """
    port = free_port()
    command = [str(program), "-m", str(file), "-t", str(threads), "-tb", str(threads), "-np", str(_SLOTS), "-cb"]
    command += ["-c", str(_SLOTS * _LENGTH), "--host", "127.0.0.1", "--port", str(port), "--no-webui"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(process, port)
        yield LlamaServer(model, form, port)
    finally:
        process.terminate()
        process.wait()


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _START
    while not _is_up(port):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"llama-server did not come up: {process.args!r}")
        time.sleep(0.1)


def _is_up(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
