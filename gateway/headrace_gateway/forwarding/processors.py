"""Which engines have the logits processors that a request names, and what is said where none has them all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headrace_proto.v1 import generation_pb2

from headrace_gateway import status
from headrace_gateway.forwarding.engines import Engine
from headrace_gateway.status import CallError

_FIELD = "config.logits_processors"
_TOLD_LENGTH = 1_000
"""Characters of a refusal, which goes into trailers twice."""


def names_of(config: generation_pb2.GenerationConfig) -> tuple[str, ...]:
    """Names of the processors that a request chooses, in its order."""
    return tuple(each.name for each in config.logits_processors)


def processing(engines: Collection[Engine], model_name: str, names: Collection[str]) -> list[Engine]:
    """Those engines that run the model with all processors of these names, as far as known.

    Where one engine alone runs it, or is going to, that one: it says better than anybody what it lacks, and why.
    """
    running = [engine for engine in engines if engine.view.runs(model_name)]
    alone = len(running) == 1 and not any(engine.view.coming(model_name) for engine in engines)
    if not names or alone:
        return running
    return [engine for engine in running if _had(engine, model_name).issuperset(names)]


def no_processing(engines: Collection[Engine], model_name: str, names: Sequence[str]) -> CallError:
    """Why no engine takes a request with these processors, where `processing` finds none."""
    had = {engine.name: _had(engine, model_name) for engine in engines if engine.view.runs(model_name)}
    known = frozenset[str]().union(*had.values())
    lacking = [name for name in names if name not in known]
    where = f'engine that runs model "{status.shown(model_name)}"'
    if not lacking:
        each = "; ".join(f"{name} has {_listed(sorted(there))}" for name, there in had.items())
        return _invalid(_FIELD, f"names {_quoted(names)}: no {where} has all of them; {each}")
    first, *others = dict.fromkeys(lacking)
    also = f", nor is {_quoted(others)}" if others else ""
    text = f"= {_quoted([first])} is on no {where}{also}; allowed: {_listed(sorted(known))}"
    return _invalid(f"{_FIELD}[{names.index(first)}].name", text)


def _invalid(field: str, text: str) -> CallError:
    return status.invalid_field(field, text if len(text) <= _TOLD_LENGTH else f"{text[:_TOLD_LENGTH]}…")


def _had(engine: Engine, model_name: str) -> frozenset[str]:
    model = engine.view.models.get(model_name)
    return frozenset() if model is None else frozenset(model.logits_processors)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{status.shown(name)}"' for name in names)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
