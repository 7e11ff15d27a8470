"""The command line: chat, generate, and the verbs of models. Needs the extra `cli` of this package.

Only answers go to stdout, so that a pipe receives the answer alone; progress, warnings and errors go to stderr.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import grpc

from headrace._base.environment import api_key, authorities, server_address
from headrace.cli import adapters as cli_adapters
from headrace.cli import answers as cli_answers
from headrace.cli import chat as cli_chat
from headrace.cli import models as cli_models
from headrace.cli import serialize as cli_serialize
from headrace.cli.bench import command as cli_bench
from headrace.cli.doctor import doctor
from headrace.cli.options import advice_for_flag
from headrace.cli.output import complain, give_up_stdout, log_as_notes, show_everything
from headrace.cli.words import sentence
from headrace.client import Client
from headrace.errors import HeadraceError

CLOSED_STDOUT = 141
"""Exit status when stdout is closed before the answer ends: what a shell reports of a program ended by SIGPIPE."""

INTERRUPTED = 130

_SYSTEM = "system"
"""As the value of --ca: the authorities that gRPC trusts by itself."""

_NEEDS_RICH = (
    "the command line needs the package rich, which is not installed: pip install 'headrace[cli]', "
    "or from a clone of Headrace pip install ./proto './client[cli]'"
)
_MANUAL = "Fields for -o: {names}. Documentation: python -m pydoc headrace.fields.{manual}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: success; 1: failure; 2: wrong usage; 130: interrupted; 141: stdout was closed, as in
    `headrace generate … | head -c 100`, which ends the request.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["doctor"]:
        try:
            return doctor(given[1:])
        except KeyboardInterrupt:
            return INTERRUPTED
    options = _parse(given)
    show_everything()
    if importlib.util.find_spec("rich") is None:
        complain(_NEEDS_RICH)
        return 1
    try:
        options.security = _security(options.ca)
        with log_as_notes(), Client(options.address, **options.security) as client:
            return int(options.run(client, options))
    except BrokenPipeError:
        give_up_stdout()
        return CLOSED_STDOUT
    except HeadraceError as error:
        complain(sentence(error, getattr(options, "model", "")))
        return 1
    except OSError as error:
        complain(str(error))
        return 1
    except (TypeError, ValueError, ImportError) as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _security(authorities: str) -> dict[str, Any]:
    """Return the client's options for keys and TLS. Raise OSError if there is no such file."""
    options: dict[str, Any] = {}
    if key := api_key():
        options["api_key"] = key
    if authorities:
        roots = None if authorities == _SYSTEM else Path(authorities).read_bytes()
        options["credentials"] = grpc.ssl_channel_credentials(roots)
    return options


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    first = next(iter(arguments), "")
    if first.startswith("-") and first not in ("-h", "--help"):
        flag = first.partition("=")[0]
        parser.error(f"{flag} must follow the command, as in headrace models {flag} …")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        advice = advice_for_flag(unknown[0], getattr(options, "fields", ()))
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace", description="Talk to a Headrace gateway or engine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    _add_answers(commands)
    commands.add_parser("doctor", help="say what this machine can run, by the engine that is installed on it")
    _add_models(commands)
    _add_adapters(commands)
    _add_serialize(commands)
    return parser


def _add_answers(commands: Any) -> None:
    """Add the commands that generate."""
    chat = _command(commands, "chat", cli_chat.chat, "chat with a model; each line is a message, /help lists commands")
    chat.add_argument("model")
    chat.add_argument("--system", metavar="TEXT", help="system message to begin with")
    _takes_fields(chat, cli_answers.FIELDS, "GenerationFields", "temperature=0.7")

    generate = _command(commands, "generate", cli_answers.generate, "continue a text; only the answer goes to stdout")
    generate.add_argument("model")
    generate.add_argument("prompt", help='text to continue; "-" reads it from stdin')
    _takes_fields(generate, cli_answers.FIELDS, "GenerationFields", "max_new_tokens=64")

    bench = _command(commands, "bench", cli_bench.bench, "put a model under load; print what its users would feel")
    cli_bench.add_arguments(bench)
    _takes_fields(bench, cli_bench.FIELDS, "GenerationFields", "temperature=0.7")


def _add_models(commands: Any) -> None:
    """Add the verbs of models."""
    models = _command(commands, "models", cli_models.models, "list models, their states, and why one failed")
    models.epilog = cli_models.COLUMNS

    install = _about_model(commands, "install", cli_models.install, "install a model: read and check its files")
    install.add_argument("path", help="directory, file or hub name, on the engine's host")
    install.add_argument("--start", action="store_true", help="start the model too")
    _takes_fields(install, cli_models.FIELDS, "InstallFields", "max_batch=8")

    _about_model(commands, "start", cli_models.start, "start an installed model: load it and warm it up")
    _about_model(commands, "stop", cli_models.stop, "stop a model once its requests end, or at its drain_limit")
    _about_model(commands, "release", cli_models.release, "free a model that does not run, and its name")


def _add_adapters(commands: Any) -> None:
    adapters = _about_model(commands, "adapters", cli_adapters.adapters, "list the LoRA adapters of a model")
    adapters.epilog = cli_adapters.COLUMNS
    load = _about_model(commands, "load-adapter", cli_adapters.load, "load a LoRA adapter for an installed model")
    load.add_argument("adapter", help="its name in lora_name")
    load.add_argument("path", help="directory that PEFT wrote, or GGUF file, on the engine's host")
    unload = _about_model(commands, "unload-adapter", cli_adapters.unload, "unload an adapter that no request uses")
    unload.add_argument("adapter", help="its name")


def _add_serialize(commands: Any) -> None:
    serialize = _about_model(
        commands, "serialize", cli_serialize.serialize, "write a model in Headrace's own format, on its engines' hosts"
    )
    serialize.add_argument("path", help="directory or hub name of the model, on the engine's host")
    serialize.add_argument(
        "--output-dir", default="", metavar="DIR", help="folder on the engine's host; default: into the engine's memory"
    )
    serialize.add_argument("--skip-if-exists", action="store_true", help="keep files that were made in the same way")
    _takes_fields(serialize, cli_serialize.FIELDS, "InstallFields", "weight_quant=INT8")
    serialize.epilog = f"{cli_serialize.COLUMNS} {serialize.epilog}"


def _command(commands: Any, name: str, run: Callable[[Client, Any], int], words: str) -> Any:
    command = commands.add_parser(name, help=words, description=words)
    command.add_argument(
        "--address",
        default=server_address(),
        metavar="HOST:PORT",
        help="server, or several separated by commas (default: $HEADRACE_ADDRESS, else localhost:7070)",
    )
    command.add_argument(
        "--ca",
        default=authorities(),
        metavar="FILE",
        help='connect over TLS to servers whose certificate is of an authority in this PEM file; "system": of a public '
        "one (default: $HEADRACE_CA, else no TLS)",
    )
    command.set_defaults(run=run)
    return command


def _about_model(commands: Any, name: str, run: Callable[[Client, Any], int], words: str) -> Any:
    command = _command(commands, name, run, words)
    command.add_argument("model", metavar="name")
    command.add_argument(
        "--engine", action="append", default=[], metavar="ENGINE", help="only on this engine; may be repeated"
    )
    return command


def _takes_fields(command: Any, fields: Collection[str], manual: str, example: str) -> None:
    words = f"set a field, such as {example}; may be repeated"
    command.add_argument("-o", "--option", action="append", default=[], metavar="FIELD=VALUE", help=words)
    command.epilog = _MANUAL.format(names=", ".join(sorted(fields)), manual=manual)
    command.set_defaults(fields=fields)
