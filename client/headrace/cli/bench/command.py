"""The `bench` command."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace._base.retry import RetryPolicy
from headrace.aio import AsyncClient
from headrace.cli.bench.chart import NEEDS_MATPLOTLIB, write_chart
from headrace.cli.bench.figures import Figures, Spread, figures_of
from headrace.cli.bench.load import Load, Plan
from headrace.cli.options import read_options
from headrace.cli.output import note, say
from headrace.client import Client
from headrace.fields import StartFields

FIELDS = frozenset(StartFields.__annotations__)
"""Fields that -o accepts."""

_REQUESTS = 100
_CONCURRENCY = 8
_NOTE_SECONDS = 5.0
_INTERRUPTED = 130
_MILLISECONDS = 1000.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("model")
    number = command.add_argument
    number("--requests", type=_above_zero(int), metavar="N", help=f"requests (default: {_REQUESTS})")
    number("--seconds", type=_above_zero(float), metavar="S", help="start requests for this long, instead of a number")
    number(
        "--concurrency",
        type=_above_zero(int),
        metavar="N",
        help=f"requests in progress (default: {_CONCURRENCY}; with --rate: no limit)",
    )
    number("--rate", type=_above_zero(float), metavar="R", help="starts per second, at random times")
    number("--prompt-tokens", type=_range, default=(256, 256), metavar="N|A-B", help="of each prompt (default: 256)")
    number("--output-tokens", type=_range, default=(128, 128), metavar="N|A-B", help="of each answer (default: 128)")
    number("--shared-tokens", type=int, default=0, metavar="N", help="with which all prompts begin (default: 0)")
    number("--prompts", type=Path, metavar="FILE", help="texts, a line each, instead of random token ids")
    number("--seed", type=int, default=None, metavar="N", help="of what is random (default: another one each time)")
    number("--json", type=Path, metavar="FILE", help="write all figures, and those of each request")
    number("--chart", metavar="FILE", help="write a chart: .svg, .png or .pdf (needs headrace[chart])")


def bench(client: Client, options: argparse.Namespace) -> int:
    """Put a model under load and print what its users would feel. 1: no request completed; 130: interrupted."""
    if options.chart and find_spec("matplotlib") is None:
        raise ImportError(NEEDS_MATPLOTLIB)
    plan = plan_of(options)
    known = next((one.effective for one in client.get_model(plan.model) if one.effective is not None), None)
    vocabulary = 0 if known is None else known.vocab_size
    if not vocabulary and not plan.prompts:
        raise ValueError(f"how many token ids {plan.model} has is not known before it was started: headrace start")
    load, interrupted = _run(options, plan, vocabulary)
    figures = figures_of(load.felt, max((one.ended or 0.0 for one in load.felt), default=0.0) or load.elapsed)
    say(report(figures))
    for one in {one.failure: one for one in load.felt if one.failure}.values():
        note(f"{one.failure}: {one.message}", "red")
    if options.json is not None:
        requests = [asdict(one) for one in load.felt]
        content = {"plan": asdict(plan), "figures": figures.as_json(), "requests": requests}
        options.json.write_text(json.dumps(content, indent=1))
    if options.chart:
        write_chart(options.chart, f"{plan.model}: {_in_words(plan)}", load.felt, figures.seconds)
    return _INTERRUPTED if interrupted else 0 if figures.completed else 1


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan that the arguments describe. Raises ValueError, OSError."""
    if options.requests is not None and options.seconds is not None:
        raise ValueError("--requests and --seconds were both given: choose one")
    if not 0 <= options.shared_tokens <= options.prompt_tokens[0]:
        least = options.prompt_tokens[0]
        raise ValueError(f"--shared-tokens {options.shared_tokens} is not between 0 and the shortest prompt, {least}")
    prompts = [] if options.prompts is None else options.prompts.read_text().splitlines()
    if options.prompts is not None and not any(prompts):
        raise ValueError(f"--prompts {options.prompts} has no lines")
    return Plan(
        model=options.model,
        requests=_REQUESTS if options.requests is None and options.seconds is None else options.requests,
        seconds=options.seconds,
        concurrency=_CONCURRENCY if options.concurrency is None and options.rate is None else options.concurrency,
        rate=options.rate,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        shared_tokens=options.shared_tokens,
        prompts=[one for one in prompts if one],
        seed=random.randrange(2**32) if options.seed is None else options.seed,
        fields=read_options(options.option, FIELDS),
    )


def report(figures: Figures) -> str:
    """Return the figures as a table."""
    failed = sum(figures.failed.values())
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(figures.failed.items()))
    per_second = [count / figures.seconds for count in (figures.completed, figures.tokens, figures.prompt_tokens)]
    lines = [
        f"requests  {figures.completed} completed in {figures.seconds:.1f} s: {per_second[0]:.2f}/s; {failed} failed"
        + (f" ({why})" if why else ""),
        f"tokens    {figures.tokens:,} generated: {per_second[1]:,.1f}/s; "
        f"{figures.prompt_tokens:,} of prompts: {per_second[2]:,.1f}/s",
        "",
        f"{'milliseconds':<26}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'longest':>10}",
    ]
    named = (
        ("first token", figures.first_token),
        ("between arrivals", figures.gap),
        ("a token after the first", figures.per_token),
        ("whole answer", figures.whole),
    )
    return "\n".join([*lines, *(_row(name, values) for name, values in named)]) + "\n"


def _row(name: str, values: Spread) -> str:
    cells = (values.mean, values.p50, values.p90, values.p99, values.largest)
    return f"{name:<26}" + "".join(f"{'–' if one is None else f'{_MILLISECONDS * one:,.1f}':>10}" for one in cells)


def _run(options: argparse.Namespace, plan: Plan, vocabulary: int) -> tuple[Load, bool]:
    """Run the load. Return it, and whether it was interrupted."""
    loads: list[Load] = []

    async def work() -> None:
        async with AsyncClient(options.address, **options.security, retry=RetryPolicy(retry_overload=False)) as client:
            load = Load(client, plan, vocabulary)
            loads.append(load)
            notes = asyncio.create_task(_note_progress(load))
            try:
                await load.run()
            finally:
                notes.cancel()

    note(f"{plan.model}: {_in_words(plan)}, seed {plan.seed}")
    try:
        asyncio.run(work())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    except KeyboardInterrupt:
        if not loads:
            raise
        return loads[0], True
    return loads[0], False


async def _note_progress(load: Load) -> None:
    """Print now and then how far the load is."""
    while True:
        await asyncio.sleep(_NOTE_SECONDS)
        ended = sum(one.ended is not None for one in load.felt)
        tokens = sum(one.tokens for one in load.felt)
        failed = sum(bool(one.failure) for one in load.felt)
        running = len(load.felt) - ended - failed
        also = f", {failed} failed" if failed else ""
        note(f"{load.elapsed:.0f} s: {ended} completed, {running} in progress{also}, {tokens:,} tokens", "dim")


def _in_words(plan: Plan) -> str:
    amount = f"{plan.requests} requests" if plan.requests is not None else f"{plan.seconds:g} s"
    pace = [] if plan.rate is None else [f"{plan.rate:g} a second"]
    pace += [] if plan.concurrency is None else [f"{plan.concurrency} at once"]
    prompts = (
        f"{len(plan.prompts)} texts" if plan.prompts else f"prompts of {_range_in_words(plan.prompt_tokens)} tokens"
    )
    shared = f" ({plan.shared_tokens} shared)" if plan.shared_tokens else ""
    return f"{amount}, {', '.join(pace)}, {prompts}{shared}, answers of {_range_in_words(plan.output_tokens)}"


def _range_in_words(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low} to {high}"


def _range(text: str) -> tuple[int, int]:
    """Read "128" or "64-512"."""
    low, _, high = text.partition("-")
    bounds = int(low), int(high or low)
    if not 1 <= bounds[0] <= bounds[1]:
        raise ValueError(text)
    return bounds


def _above_zero(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise ValueError(text)
        return value

    read.__name__ = f"number above 0 ({kind.__name__})" if kind is int else "number above 0"
    return read
