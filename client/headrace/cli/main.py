"""The command line: chat, generate, models, install, start, stop, release. Needs the extra `cli` of this package.

Answers go to stdout and nothing else does, so that a pipe gets the answer alone; what happens goes to stderr.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from headrace._base.environment import api_key, server_address
from headrace.cli import answers as cli_answers
from headrace.cli import chat as cli_chat
from headrace.cli import models as cli_models
from headrace.cli.options import advice_for_flag
from headrace.cli.output import complain, give_up_stdout, log_as_notes, show_everything
from headrace.cli.words import sentence
from headrace.client import Client
from headrace.errors import HeadraceError

CLOSED_STDOUT = 141
"""Exit status where nobody read the answer to its end: that of a program that SIGPIPE ends, as a shell tells it."""

INTERRUPTED = 130

_NEEDS_RICH = (
    "the command line needs the package rich, which is not installed: pip install 'headrace[cli]', "
    "or from a clone of Headrace pip install ./proto './client[cli]'"
)
_MANUAL = "Fields of -o: {names}. What they mean: python -m pydoc headrace.fields.{manual}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Exit status: 0, 1 where it failed, 2 where it was called wrongly, 130 where it was interrupted, 141 where its stdout
    was closed (`headrace generate … | head -c 100`), which ends its request.
    """
    options = _parse(arguments)
    show_everything()
    if importlib.util.find_spec("rich") is None:
        complain(_NEEDS_RICH)
        return 1
    try:
        with log_as_notes(), Client(options.address, **_credentials()) as client:
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


def _credentials() -> dict[str, Any]:
    key = api_key()
    return {"api_key": key} if key else {}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    first = next(iter(sys.argv[1:] if arguments is None else arguments), "")
    if first.startswith("-") and first not in ("-h", "--help"):
        flag = first.partition("=")[0]
        parser.error(f"{flag} stands before the command: options stand after it, as in headrace models {flag} …")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        advice = advice_for_flag(unknown[0], getattr(options, "fields", ()))
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace", description="Talk to a Headrace gateway or engine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    chat = _command(commands, "chat", cli_chat.chat, "talk with a model; each line is a message, /help lists the rest")
    chat.add_argument("model")
    chat.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    _takes_fields(chat, cli_answers.FIELDS, "GenerationFields", "temperature=0.7")

    generate = _command(commands, "generate", cli_answers.generate, "continue a text; the answer alone goes to stdout")
    generate.add_argument("model")
    generate.add_argument("prompt", help='the text; "-" reads it from stdin')
    _takes_fields(generate, cli_answers.FIELDS, "GenerationFields", "max_new_tokens=64")

    models = _command(commands, "models", cli_models.models, "list models with their states, and why one failed")
    models.epilog = cli_models.COLUMNS

    install = _about_model(commands, "install", cli_models.install, "install a model: read and check it")
    install.add_argument("path", help="directory, file or hub name, on the engine's host")
    install.add_argument("--start", action="store_true", help="start it too")
    _takes_fields(install, cli_models.FIELDS, "InstallFields", "max_batch=8")

    _about_model(commands, "start", cli_models.start, "start an installed model: load it and warm it up")
    _about_model(commands, "stop", cli_models.stop, "stop a model: its requests may end, up to its drain_limit")
    _about_model(commands, "release", cli_models.release, "free a model that does not run, and its name")
    return parser


def _command(commands: Any, name: str, run: Callable[[Client, Any], int], words: str) -> Any:
    command = commands.add_parser(name, help=words, description=words)
    command.add_argument(
        "--address",
        default=server_address(),
        metavar="HOST:PORT",
        help="the server, or several separated by commas; default: $HEADRACE_ADDRESS, else localhost:7070",
    )
    command.set_defaults(run=run)
    return command


def _about_model(commands: Any, name: str, run: Callable[[Client, Any], int], words: str) -> Any:
    command = _command(commands, name, run, words)
    command.add_argument("model", metavar="name")
    command.add_argument("--engine", action="append", default=[], metavar="ENGINE", help="only there; may be repeated")
    return command


def _takes_fields(command: Any, fields: Collection[str], manual: str, example: str) -> None:
    words = f"a field, such as {example}; may be repeated"
    command.add_argument("-o", "--option", action="append", default=[], metavar="FIELD=VALUE", help=words)
    command.epilog = _MANUAL.format(names=", ".join(sorted(fields)), manual=manual)
    command.set_defaults(fields=fields)
