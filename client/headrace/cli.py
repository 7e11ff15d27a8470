"""The command line: chat, generate, models, install. Needs the extra `cli`: pip install "headrace[cli]".

Answers go to stdout and nothing else does, so that a pipe gets the answer alone; what happens goes to stderr.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.cli_options import read_options
from headrace.client import Client
from headrace.errors import HeadraceError
from headrace.model_types import EngineStat, ModelInfo
from headrace.result_queue import ResultQueue
from headrace.types import ModelState

if TYPE_CHECKING:
    from rich.console import Console

_NEEDS_RICH = "headrace: the command line needs rich, which is not installed: pip install 'headrace[cli]'\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Exit status: 0, 1 where it failed, 2 where it was called wrongly, 130 where it was stopped."""
    options = _parser().parse_args(arguments)
    if importlib.util.find_spec("rich") is None:
        sys.stderr.write(_NEEDS_RICH)
        return 1
    try:
        with Client(options.address, **_credentials()) as client:
            return int(options.run(client, options) or 0)
    except BrokenPipeError:
        # Whoever read the answer has had enough. Python would complain again when it flushes stdout at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except HeadraceError as error:
        return _complain(error, 1)
    except (TypeError, ValueError, ImportError) as error:
        return _complain(error, 2)
    except KeyboardInterrupt:
        return 130


def _complain(error: Exception, status: int) -> int:
    sys.stderr.write(f"headrace: {error}\n")
    return status


def _credentials() -> dict[str, Any]:
    key = os.environ.get("HEADRACE_API_KEY")
    return {"api_key": key} if key else {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace", description="Talk to a Headrace gateway or engine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    field = {"action": "append", "default": [], "metavar": "FIELD=VALUE"}

    chat = _command(commands, "chat", _chat, "talk with a model; each line is a message")
    chat.add_argument("model")
    chat.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    chat.add_argument("-o", "--option", **field, help="a generation field, such as temperature=0.7; may be repeated")

    generate = _command(commands, "generate", _generate, "continue a text; the answer alone goes to stdout")
    generate.add_argument("model")
    generate.add_argument("prompt", help='the text; "-" reads it from stdin')
    generate.add_argument("-o", "--option", **field, help="a generation field, such as max_new_tokens=64")

    _command(commands, "models", _models, "list models with their states")

    install = _command(commands, "install", _install, "install a model")
    install.add_argument("name")
    install.add_argument("path", help="directory, file or hub name, on the engine's host")
    install.add_argument("--start", action="store_true", help="start it too")
    install.add_argument("--engine", action="append", default=[], metavar="ENGINE", help="only there; may be repeated")
    install.add_argument("-o", "--option", **field, help="an install field, such as max_batch=8; may be repeated")
    return parser


def _command(commands: Any, name: str, run: Callable[[Client, Any], int | None], words: str) -> Any:
    command = commands.add_parser(name, help=words, description=words)
    address = os.environ.get("HEADRACE_ADDRESS", "localhost:7070")
    command.add_argument(
        "--address",
        default=address,
        metavar="HOST:PORT",
        help="the server, or several separated by commas; default: $HEADRACE_ADDRESS, else localhost:7070",
    )
    command.set_defaults(run=run)
    return command


def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _chat(client: Client, options: argparse.Namespace) -> None:
    fields = read_options(options.option)
    history: list[dict[str, Any]] = []
    if options.system is not None:
        history.append({"role": "system", "content": options.system})
    console = _stderr()
    while (line := _next_line()) is not None:
        history.append({"role": "user", "content": line})
        handle, queue = client.start_request(options.model, messages=history, **fields)
        answer = _stream(client, queue)
        history.append({"role": "assistant", "content": answer})
        console.print(_speed(queue), style="dim")
        client.release_request(handle)


def _next_line() -> str | None:
    """The next message: asked for on a terminal, the next line of a pipe elsewhere; None at the end."""
    if sys.stdin.isatty():
        with suppress(EOFError, KeyboardInterrupt):
            return input("> ")
        return None
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _stream(client: Client, queue: ResultQueue) -> str:
    """Prints the answer as it comes; an interrupt stops the answer, not the conversation."""
    pieces: list[str] = []
    try:
        _print_all(queue, pieces)
    except KeyboardInterrupt:
        client.stop_request(queue.handle)
        _print_all(queue, pieces)
    _say("\n")
    return "".join(pieces)


def _print_all(queue: ResultQueue, pieces: list[str]) -> None:
    for elements in queue:
        pieces.append(elements.text)
        _say(elements.text)


def _speed(queue: ResultQueue) -> str:
    stat = queue.RequestStatInfo()
    first, rate = stat["time_to_first_token"], stat["generate_tps"]
    figures = [
        f"{queue.GeneratedLength()} tokens",
        f"first after {first:.0f} ms" if first is not None else "",
        f"{rate:.1f} tok/s" if rate is not None else "",
        str(queue.finish_reason or ""),
    ]
    return ", ".join(figure for figure in figures if figure)


def _generate(client: Client, options: argparse.Namespace) -> None:
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    for text in client.generate(options.model, text=prompt, **read_options(options.option)):
        _say(text)
    _say("\n")


def _models(client: Client, options: argparse.Namespace) -> None:
    rows = _model_rows(client.list_models(), client.engine_stats())
    if sys.stdout.isatty():
        _print_table(rows)
    else:
        _say("".join("\t".join(row) + "\n" for row in rows))


_COLUMNS = ("model", "engine", "state", "KV tokens", "running", "waiting")


def _model_rows(models: Sequence[ModelInfo], stats: Sequence[EngineStat]) -> list[tuple[str, ...]]:
    figures = {(stat.model_name, stat.engine): stat for stat in stats}
    rows = []
    for model in models:
        stat = figures.get((model.model_name, model.engine))
        numbers = (stat.tokens_total, stat.running, stat.waiting) if stat is not None else ("", "", "")
        rows.append(
            (
                model.model_name,
                model.engine,
                str(model.state),
                *(f"{number:,}" if number != "" else "" for number in numbers),
            )
        )
    return rows


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*_COLUMNS)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


def _install(client: Client, options: argparse.Namespace) -> int:
    fields = read_options(options.option)
    models = client.install_model(options.name, options.path, engine_ids=options.engine, no_wait=True, **fields)
    failed = _follow(client, options.name, models, lambda state: state is not ModelState.INSTALLING)
    if options.start and not failed:
        models = client.start_model(options.name, engine_ids=options.engine, no_wait=True)
        failed = _follow(client, options.name, models, lambda state: state is ModelState.RUNNING)
    return 1 if failed else 0


def _follow(client: Client, name: str, models: Sequence[ModelInfo], done: Callable[[ModelState], bool]) -> bool:
    """Shows what engines do until all are done; whether one of them failed."""
    console = _stderr()
    waiting = {model.engine for model in models}
    failed = False
    with console.status(name) as status, client.watch_model(name, engine_ids=sorted(waiting)) as watch:
        for model in watch:
            status.update(_progress(model))
            ended = model.state is ModelState.FAILED or model.failure is not None
            if model.engine in waiting and (ended or done(model.state)):
                waiting.discard(model.engine)
                failed = failed or ended
                console.print(_outcome(model))
            if not waiting:
                break
    return failed


def _progress(model: ModelInfo) -> str:
    progress = model.progress
    if progress is None:
        return f"{model.model_name}  {model.engine}  {model.state.lower()}"
    share = f"  {progress.bytes_done / progress.bytes_total:.0%}" if progress.bytes_total else ""
    return f"{model.model_name}  {model.engine}  {progress.phase.lower().replace('_', ' ')}{share}"


def _outcome(model: ModelInfo) -> str:
    if model.failure is not None:
        return f"{model.state} {model.model_name}  {model.engine}: {model.failure}"
    return f"{model.state} {model.model_name}  {model.engine}"


if __name__ == "__main__":
    sys.exit(main())
