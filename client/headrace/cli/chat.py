"""The `chat` command: a conversation with a model."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from contextlib import suppress
from typing import Any

from headrace._api.release import RELEASE_TIMEOUT
from headrace._streaming.result_queue import ResultQueue
from headrace.cli.answers import FIELDS, cut_reason, fills_max_length, speed, warn
from headrace.cli.input import at_terminal, read_line
from headrace.cli.options import read_options
from headrace.cli.output import complain, end_line, note, say
from headrace.cli.words import sentence
from headrace.client import Client
from headrace.errors import HeadraceError, InvalidRequestError, StateError, UnavailableError
from headrace.model_types import ModelInfo
from headrace.types import ModelState

HELP = """\
/clear   start a new conversation
/help    show this list
Ctrl-C   stop the answer
Ctrl-D   quit
Every other line is a message. A space in front makes a message of a command, too."""

_COMMAND = re.compile(r"/[a-z]+")


def chat(client: Client, options: argparse.Namespace) -> int:
    """Read messages and print the answers until the input ends; return 1 if a piped message was not answered."""
    conversation = Conversation(client, options.model, options.system, read_options(options.option, FIELDS))
    _check_running(client.get_model(options.model), options.model)
    if at_terminal():
        note("Type a message, or /help for the commands.", "dim")
    unanswered = 0
    while (line := _next_line()) is not None:
        if _COMMAND.fullmatch(line):
            _run_command(line, conversation)
        elif line.strip() and not _ask(conversation, line):
            unanswered += 1
    return 1 if unanswered and not at_terminal() else 0


def _ask(conversation: Conversation, line: str) -> bool:
    """Send a message and print its answer; at a terminal an interrupt ends this answer and not the program."""
    try:
        return conversation.ask(line)
    except KeyboardInterrupt:
        if not at_terminal():
            raise
        note("")
        return False


def _check_running(models: list[ModelInfo], name: str) -> None:
    """Raise StateError, before the first message is typed, if the model neither runs nor is about to."""
    if any(model.state is ModelState.RUNNING or _about_to_run(model) for model in models):
        return
    known = [model for model in models if model.state is not ModelState.UNKNOWN] or models
    for model in known:
        why = f": {model.failure.message}" if model.failure is not None else ""
        raise StateError(
            f'model "{name}" is {model.state}{why}', reason="MODEL_NOT_RUNNING", details={"state": str(model.state)}
        )


def _about_to_run(model: ModelInfo) -> bool:
    """Return whether the model will run by itself; the first request waits for that."""
    before_running = (ModelState.INSTALLING, ModelState.INITIAL, ModelState.STARTING)
    return model.wanted_state is ModelState.RUNNING and model.state in before_running


def _run_command(command: str, conversation: Conversation) -> None:
    if command == "/clear":
        conversation.clear()
        note("Started a new conversation.", "dim")
    elif command == "/help":
        note(HELP)
    else:
        complain(f'unknown command "{command}"; /help lists the commands')


def _next_line() -> str | None:
    """Return the next message, from a prompt at a terminal or the next line of a pipe; None at the end."""
    if not at_terminal():
        line = read_line()
        return line.rstrip("\n") if line else None
    with suppress(ImportError):
        importlib.import_module("readline")  # Gives `input` line editing and history.
    with suppress(EOFError, KeyboardInterrupt):
        if sys.stdout.isatty():
            return input("> ")
        sys.stderr.write("> ")
        sys.stderr.flush()
        return input()
    note("")
    return None


class Conversation:
    """The messages so far. One that fails is removed, so that the next one continues from the state before it.

    Args:
        client: client of the server that has the model.
        model: name of the model.
        system: system message to begin with; None: none.
        fields: generation fields.
    """

    def __init__(self, client: Client, model: str, system: str | None, fields: dict[str, Any]) -> None:
        self._client = client
        self._model = model
        self._fields = fields
        self._begin = [{"role": "system", "content": system}] if system is not None else []
        self._messages = list(self._begin)
        self._answered = False

    def clear(self) -> None:
        """Remove all messages but the system message."""
        self._messages = list(self._begin)

    def ask(self, message: str) -> bool:
        """Send one more message and print the answer; return False if it failed, after printing why.

        Raises:
            HeadraceError: the message failed, and every other one would too.
        """
        try:
            self._answer([*self._messages, {"role": "user", "content": message}])
        except HeadraceError as error:
            if not self._goes_on(error):
                raise
            complain(sentence(error, self._model))
            self._advise(error)
            return False
        return True

    def _answer(self, messages: list[dict[str, Any]]) -> None:
        handle, queue = self._client.start_request(self._model, messages=messages, **self._fields)
        if not self._answered:
            warn(queue)
        try:
            answer = _stream(self._client, queue)
        except UnavailableError:
            raise  # The server cannot be reached, so it cannot release the request either.
        except HeadraceError:
            self._release(handle)
            raise
        self._messages = [*messages, {"role": "assistant", "content": answer}]
        self._answered = True
        note(speed(queue), "dim")
        _print_cut(queue)
        self._release(handle)

    def _release(self, handle: str) -> None:
        # The client tries again when it is closed; after that the request's lease ends it.
        with suppress(HeadraceError):
            self._client.release_request(handle, timeout=RELEASE_TIMEOUT)

    def _goes_on(self, error: HeadraceError) -> bool:
        """Return whether another message may succeed."""
        if isinstance(error, InvalidRequestError):
            return self._answered or _is_too_long(error)
        # At a terminal the user decides whether to go on.
        return at_terminal() and error.reason not in ("UNKNOWN_MODEL", "BAD_API_KEY", "NOT_ALLOWED")

    def _advise(self, error: HeadraceError) -> None:
        if not _is_too_long(error):
            note("(the message was dropped)")
        elif self._messages != self._begin:
            note("(the message was dropped: write a shorter one, or start over with /clear)")
        else:
            note("(the message was dropped: write a shorter one)")


def _print_cut(queue: ResultQueue) -> None:
    reason = cut_reason(queue)
    if reason is not None:
        note(reason)
        if fills_max_length(queue):
            note("(the conversation is full: /clear starts a new one)")


def _is_too_long(error: HeadraceError) -> bool:
    fields = {violation["field"] for violation in error.details.get("field_violations", ())}
    return error.reason == "PROMPT_TOO_LONG" or "config.max_new_tokens" in fields


def _stream(client: Client, queue: ResultQueue) -> str:
    """Print the answer as it arrives and return it; at a terminal an interrupt stops the answer alone."""
    pieces: list[str] = []
    try:
        _print_all(queue, pieces)
    except KeyboardInterrupt:
        if not at_terminal():
            raise
        client.stop_request(queue.handle)
        _print_all(queue, pieces)
    except HeadraceError:
        end_line()
        raise
    say("\n")
    return "".join(pieces)


def _print_all(queue: ResultQueue, pieces: list[str]) -> None:
    for elements in queue:
        pieces.append(elements.text)
        say(elements.text)
