"""The `generate` command, and the notes that are printed with every answer."""

from __future__ import annotations

import argparse

from headrace._api.text_stream import TextStream
from headrace._streaming.result_queue import ResultQueue
from headrace.cli.input import read_all
from headrace.cli.options import read_options
from headrace.cli.output import end_line, note, say
from headrace.client import Client
from headrace.errors import HeadraceError
from headrace.fields import StartFields
from headrace.types import FinishReason

FIELDS = frozenset(StartFields.__annotations__)
"""Fields that -o accepts for `chat` and `generate`."""

_COMPLETE = (FinishReason.EOS, FinishReason.STOP_WORD, FinishReason.STOPPED)


def generate(client: Client, options: argparse.Namespace) -> int:
    """Print the continuation of a text."""
    fields = read_options(options.option, FIELDS)
    prompt = read_all() if options.prompt == "-" else options.prompt
    with client.generate(options.model, text=prompt, **fields) as stream:
        warn(stream.queue)
        _print(stream)
    if (reason := cut_reason(stream.queue)) is not None:
        note(reason)
    return 0


def _print(stream: TextStream) -> None:
    try:
        for text in stream:
            say(text)
    except HeadraceError:
        end_line()
        raise
    say("\n")


def warn(queue: ResultQueue) -> None:
    """Print the engine's warnings about a request."""
    for warning in queue.request.warnings:
        note(f"note: {warning.message}")


def cut_reason(queue: ResultQueue) -> str | None:
    """Return why an answer was cut short and what to do about it; None if it is complete."""
    reason = queue.finish_reason
    if reason is None or reason in _COMPLETE:
        return None
    if reason is FinishReason.DRAINED:
        return f"(cut: {reason}, the model or its engine was stopped)"
    if reason is not FinishReason.MAX_LENGTH:
        return f"(cut: {reason})"
    config = queue.request.effective_config
    if fills_max_length(queue):
        return f"(cut: prompt and answer reached max_length = {config['max_length']} tokens)"
    return f"(cut after {queue.GeneratedLength()} tokens: set another limit with -o max_new_tokens=…)"


def fills_max_length(queue: ResultQueue) -> bool:
    """Return whether prompt and answer together reach max_length."""
    limit = queue.request.effective_config.get("max_length")
    return limit is not None and queue.request.prompt_token_count + queue.GeneratedLength() >= limit


def speed(queue: ResultQueue) -> str:
    """Return an answer's token count, speed and finish reason as one line."""
    stat = queue.RequestStatInfo()
    first, rate = stat["time_to_first_token"], stat["generate_tps"]
    figures = [
        f"{queue.GeneratedLength()} tokens",
        f"first after {first:.0f} ms" if first is not None else "",
        f"{rate:.1f} tok/s" if rate is not None else "",
        str(queue.finish_reason or ""),
    ]
    return ", ".join(figure for figure in figures if figure)
