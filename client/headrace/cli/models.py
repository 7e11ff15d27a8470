"""The commands about models: `models`, `install`, `start`, `stop`, `release`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from headrace.cli.options import read_options
from headrace.cli.output import note, say
from headrace.cli.progress import Progress
from headrace.cli.words import sentence
from headrace.client import Client
from headrace.errors import HeadraceError
from headrace.fields import InstallFields
from headrace.model_types import EngineStat, ModelInfo
from headrace.types import ModelState

FIELDS = frozenset(InstallFields.__annotations__)
"""Fields that -o accepts for `install`."""

_COLUMNS = ("model", "engine", "state", "KV tokens", "running", "waiting")

COLUMNS = f"A pipe receives tab-separated columns: {', '.join(_COLUMNS)}, failure."


def models(client: Client, options: argparse.Namespace) -> int:
    """Print all models: a table on a terminal, else tab-separated columns, of which the last one is the failure."""
    found = client.list_models()
    rows = _rows(found, client.engine_stats())
    if sys.stdout is not None and sys.stdout.isatty():
        _print_table(rows)
        for model in found:
            if model.failure is not None:
                note(_outcome(model), "red")
    else:
        failures = [
            "" if model.failure is None else " ".join(_short(model.failure).splitlines()).replace("\t", " ")
            for model in found
        ]
        say("".join("\t".join((*row, failure)) + "\n" for row, failure in zip(rows, failures, strict=True)))
    return 0


def _short(failure: HeadraceError) -> str:
    """Return a failure without its advice on retries, which a list does not do."""
    return failure.message.partition(";")[0] if failure.reason == "ENGINE_UNREACHABLE" else str(failure)


def _rows(found: Sequence[ModelInfo], stats: Sequence[EngineStat]) -> list[tuple[str, ...]]:
    figures = {(stat.model_name, stat.engine): stat for stat in stats}
    rows = []
    for model in found:
        stat = figures.get((model.model_name, model.engine))
        numbers = (stat.tokens_total, stat.running, stat.waiting) if stat is not None else ("", "", "")
        cells = (f"{number:,}" if number != "" else "" for number in numbers)
        rows.append((model.model_name, model.engine, str(model.state), *cells))
    return rows


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*_COLUMNS)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


def install(client: Client, options: argparse.Namespace) -> int:
    """Install a model, and start it if --start is given."""
    fields = read_options(options.option, FIELDS)
    engines = options.engine
    status = _carry_out(
        client, options, lambda: client.install_model(options.model, options.path, engine_ids=engines, **fields)
    )
    if status == 0 and options.start:
        return start(client, options)
    return status


def start(client: Client, options: argparse.Namespace) -> int:
    """Start a model and show its progress."""
    return _carry_out(client, options, lambda: client.start_model(options.model, engine_ids=options.engine))


def stop(client: Client, options: argparse.Namespace) -> int:
    """Stop a model once its requests ended and show its progress."""
    return _carry_out(client, options, lambda: client.stop_model(options.model, engine_ids=options.engine))


def release(client: Client, options: argparse.Namespace) -> int:
    """Free a stopped model and its name."""
    return _carry_out(client, options, lambda: client.release_model(options.model, engine_ids=options.engine))


def _carry_out(client: Client, options: argparse.Namespace, verb: Callable[[], list[ModelInfo]]) -> int:
    """Wait for a call about a model while showing its progress, and print the outcome on each engine."""
    try:
        with Progress(client, options.model):
            done = verb()
    except KeyboardInterrupt:
        note(f"Stopped waiting; the engines go on with {options.model}: headrace models shows its state.")
        raise
    for model in done:
        note(_outcome(model), "red" if model.failure is not None else "")
    return 1 if any(model.failure is not None for model in done) else 0


def _outcome(model: ModelInfo) -> str:
    target = f"{model.model_name} on {model.engine}"
    if model.failure is not None:
        return f"{model.state} {target}: {sentence(model.failure, model.model_name, model.state)}"
    effective = model.effective
    if model.state is ModelState.RUNNING and effective is not None and effective.kv_tokens:
        return f"{model.state} {target}: {effective.kv_tokens:,} tokens of KV cache ({_bytes(effective.kv_bytes)})"
    return f"{model.state} {target}"


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
