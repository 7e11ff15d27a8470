"""The commands about adapters: `adapters`, `load-adapter`, `unload-adapter`."""

from __future__ import annotations

import argparse

from headrace.cli.output import note, say
from headrace.cli.words import sentence
from headrace.client import Client
from headrace.model_types import AdapterInfo

COLUMNS = "Prints tab-separated columns: name, engine, rank, sequences that use it, path."


def adapters(client: Client, options: argparse.Namespace) -> int:
    """Print the adapters of a model as tab-separated columns; an engine that fails is a line on stderr."""
    found = client.list_adapters(options.model, engine_ids=options.engine)
    for one in found:
        if one.failure is None:
            say("\t".join((one.name, one.engine, str(one.rank), str(one.sequences), one.path)) + "\n")
    return _note_failures(found, "LISTED")


def load(client: Client, options: argparse.Namespace) -> int:
    """Load an adapter, and print the outcome on each engine."""
    found = client.load_adapter(options.model, options.adapter, options.path, engine_ids=options.engine)
    for one in found:
        if one.failure is None:
            instead = f", instead of {one.unloaded}" if one.unloaded else ""
            note(f"LOADED {one.name} on {one.engine}: rank {one.rank}{instead}")
    return _note_failures(found, "LOADED")


def unload(client: Client, options: argparse.Namespace) -> int:
    """Unload an adapter, and print the outcome on each engine."""
    found = client.unload_adapter(options.model, options.adapter, engine_ids=options.engine)
    for one in found:
        if one.failure is None:
            note(f"UNLOADED {one.name} on {one.engine}")
    return _note_failures(found, "UNLOADED")


def _note_failures(found: list[AdapterInfo], done: str) -> int:
    failed = [one for one in found if one.failure is not None]
    for one in failed:
        assert one.failure is not None
        note(f"NOT {done} on {one.engine}: {sentence(one.failure, one.model_name)}", "red")
    return 1 if failed else 0
