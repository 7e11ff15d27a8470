"""A conversation on the command line."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from contextlib import suppress
from typing import Any

from headrace._api.giving_back import GIVE_BACK_TIMEOUT
from headrace._streaming.result_queue import ResultQueue
from headrace.cli.answers import FIELDS, fills_max_length, speed, warn, why_short
from headrace.cli.input import at_terminal, read_line
from headrace.cli.options import read_options
from headrace.cli.output import complain, end_line, note, say
from headrace.cli.words import sentence
from headrace.client import Client
from headrace.errors import HeadraceError, InvalidRequestError, StateError, UnavailableError
from headrace.model_types import ModelInfo
from headrace.types import ModelState

HELP = """\
/clear   forget the conversation, and begin anew
/help    this list
Ctrl-C   stop an answer
Ctrl-D   end
A line is a message; one that begins with such a word and a space before it is one too."""

_COMMAND = re.compile(r"/[a-z]+")


def chat(client: Client, options: argparse.Namespace) -> int:
    """Asks for messages and prints the answers, until there are no more messages; 1 where one was not answered."""
    conversation = Conversation(client, options.model, options.system, read_options(options.option, FIELDS))
    _check_running(client.get_model(options.model), options.model)
    if at_terminal():
        note("/help lists what there is beside messages.", "dim")
    unanswered = 0
    while (line := _next_line()) is not None:
        if _COMMAND.fullmatch(line):
            _obey(line, conversation)
        elif line.strip() and not _ask(conversation, line):
            unanswered += 1
    return 1 if unanswered and not at_terminal() else 0


def _ask(conversation: Conversation, line: str) -> bool:
    """Asks; at a terminal an interrupt ends no more than this, whether it comes before, in or after the answer."""
    try:
        return conversation.ask(line)
    except KeyboardInterrupt:
        if not at_terminal():
            raise
        note("")
        return False


def _check_running(models: list[ModelInfo], name: str) -> None:
    """Refuses a model that takes no requests and is not about to, before the first message is written."""
    if any(model.state is ModelState.RUNNING or _coming(model) for model in models):
        return
    known = [model for model in models if model.state is not ModelState.UNKNOWN] or models
    for model in known:
        why = f": {model.failure.message}" if model.failure is not None else ""
        raise StateError(
            f'model "{name}" is {model.state}{why}', reason="MODEL_NOT_RUNNING", details={"state": str(model.state)}
        )


def _coming(model: ModelInfo) -> bool:
    """Whether it will run by itself, which the first question waits for."""
    on_the_way = (ModelState.INSTALLING, ModelState.INITIAL, ModelState.STARTING)
    return model.wanted_state is ModelState.RUNNING and model.state in on_the_way


def _obey(command: str, conversation: Conversation) -> None:
    if command == "/clear":
        conversation.clear()
        note("The conversation begins anew.", "dim")
    elif command == "/help":
        note(HELP)
    else:
        complain(f'there is no "{command}"; /help lists what there is')


def _next_line() -> str | None:
    """The next message: asked for on a terminal, the next line of a pipe elsewhere; None at the end."""
    if not at_terminal():
        line = read_line()
        return line.rstrip("\n") if line else None
    with suppress(ImportError):
        importlib.import_module("readline")  # Gives `input` a line to edit, and the lines before.
    with suppress(EOFError, KeyboardInterrupt):
        if sys.stdout.isatty():
            return input("> ")
        sys.stderr.write("> ")
        sys.stderr.flush()
        return input()
    note("")
    return None


class Conversation:
    """Messages so far. One that fails is taken back, so that the next one finds the conversation as it was.

    Args:
        client: where the model is.
        model: its name.
        system: a system message to begin with; None: none.
        fields: how to generate.
    """

    def __init__(self, client: Client, model: str, system: str | None, fields: dict[str, Any]) -> None:
        self._client = client
        self._model = model
        self._fields = fields
        self._begin = [{"role": "system", "content": system}] if system is not None else []
        self._messages = list(self._begin)
        self._answered = False

    def clear(self) -> None:
        """Forgets all but the system message."""
        self._messages = list(self._begin)

    def ask(self, message: str) -> bool:
        """Prints the answer to one more message; False: it failed, which was told.

        Raises:
            HeadraceError: it failed, and so would every other.
        """
        asked = [*self._messages, {"role": "user", "content": message}]
        try:
            self._answer(asked)
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
            raise  # Nobody is there to release it.
        except HeadraceError:
            self._release(handle)
            raise
        self._messages = [*messages, {"role": "assistant", "content": answer}]
        self._answered = True
        note(speed(queue), "dim")
        _tell_end(queue)
        self._release(handle)

    def _release(self, handle: str) -> None:
        # What cannot be released now is tried again at the end, and then left to its lease.
        with suppress(HeadraceError):
            self._client.release_request(handle, timeout=GIVE_BACK_TIMEOUT)

    def _goes_on(self, error: HeadraceError) -> bool:
        """Whether another message may fare better."""
        if isinstance(error, InvalidRequestError):
            return self._answered or _is_too_long(error)
        # A terminal has somebody who decides whether to go on.
        return at_terminal() and error.reason not in ("UNKNOWN_MODEL", "BAD_API_KEY", "NOT_ALLOWED")

    def _advise(self, error: HeadraceError) -> None:
        if not _is_too_long(error):
            note("(the message was taken back)")
        elif self._messages != self._begin:
            note("(the message was taken back: write a shorter one, or begin anew with /clear)")
        else:
            note("(the message was taken back: write a shorter one)")


def _tell_end(queue: ResultQueue) -> None:
    words = why_short(queue)
    if words is not None:
        note(words)
        if fills_max_length(queue):
            note("(the conversation has no room left: /clear begins anew)")


def _is_too_long(error: HeadraceError) -> bool:
    fields = {violation["field"] for violation in error.details.get("field_violations", ())}
    return error.reason == "PROMPT_TOO_LONG" or "config.max_new_tokens" in fields


def _stream(client: Client, queue: ResultQueue) -> str:
    """Prints the answer as it comes; at a terminal an interrupt stops the answer, not the conversation."""
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
