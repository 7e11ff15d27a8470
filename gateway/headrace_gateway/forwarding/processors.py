"""Choice of engines by the logits processors that a request names, and the refusal if none has them all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headrace_proto.v1 import generation_pb2

from headrace_gateway import status
from headrace_gateway.engines.engine import Engine
from headrace_gateway.status import CallError

_FIELD = "config.logits_processors"
_MAX_TEXT = 1_000
"""Maximum characters of a refusal, which goes into trailers twice."""


def names_of(config: generation_pb2.GenerationConfig) -> tuple[str, ...]:
    """Return the names of the processors that a request names, in its order."""
    return tuple(each.name for each in config.logits_processors)


def processing(engines: Collection[Engine], model_name: str, names: Collection[str]) -> list[Engine]:
    """Return the engines that run the model with all processors of these names, as last polled.

    If only one engine runs it, or is going to, return that one: its own refusal is more precise.
    """
    running = [engine for engine in engines if engine.view.runs(model_name)]
    alone = len(running) == 1 and not any(engine.view.coming(model_name) for engine in engines)
    if not names or alone:
        return running
    return [engine for engine in running if _had(engine, model_name).issuperset(names)]


def no_processing(engines: Collection[Engine], model_name: str, names: Sequence[str]) -> CallError:
    """Build the refusal for a request with these processors, after `processing` found no engine."""
    had = {engine.name: _had(engine, model_name) for engine in engines if engine.view.runs(model_name)}
    known = frozenset[str]().union(*had.values())
    missing = [name for name in names if name not in known]
    where = f'engine that runs model "{status.shorten(model_name)}"'
    if not missing:
        each = "; ".join(f"{name} has {_listed(sorted(there))}" for name, there in had.items())
        return _invalid(_FIELD, f"names {_quoted(names)}: no {where} has all of them; {each}")
    first, *others = dict.fromkeys(missing)
    also = f", nor is {_quoted(others)}" if others else ""
    text = f"= {_quoted([first])} is not available on any {where}{also}; allowed: {_listed(sorted(known))}"
    return _invalid(f"{_FIELD}[{names.index(first)}].name", text)


def _invalid(field: str, text: str) -> CallError:
    return status.invalid_field(field, text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…")


def _had(engine: Engine, model_name: str) -> frozenset[str]:
    model = engine.view.models.get(model_name)
    return frozenset() if model is None else frozenset(model.logits_processors)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{status.shorten(name)}"' for name in names)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
