"""The order of engines for a request: by load or key, and by what they have computed of the prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headrace_gateway.engines.engine import Engine
from headrace_gateway.engines.prefixes import RECENT_SECONDS

ALLOWANCE = 2
"""Requests that an engine with the beginning of a prompt may have more than the least loaded one."""


@dataclass(frozen=True)
class Wanted:
    """Properties that a request needs of its engine; the attributes are the arguments of `Router.place`."""

    model_name: str
    key: str
    processors: Sequence[str]
    prompt: Sequence[bytes]
    adapter: str = ""


def rank(engine: Engine, wanted: Wanted) -> tuple[tuple[bool, ...], int, int]:
    """Sort key of engines: the lowest gets the request."""
    lacks = not wanted.key and (wanted.model_name, wanted.adapter) in engine.lacked
    order = _digest(engine.name, wanted.key) if wanted.key else engine.load.requests
    serves = engine.view.serves(wanted.model_name)
    return (not engine.breaker.closed, not serves, lacks, engine.spare), order, engine.turn


def with_prefix(best: Engine, able: Sequence[Engine], wanted: Wanted, keys: Sequence[bytes]) -> Engine:
    """Return the engine that has the longest beginning of the prompt, if none has to wait for that; else `best`.

    Args:
        keys: of the prompt's pieces, as far as they are known.
    """
    known = {engine: _known(engine, wanted, keys) for engine in able}
    if not any(known.values()):
        return best
    most = best.load.requests + ALLOWANCE
    equal = rank(best, wanted)[0]
    free = [
        engine
        for engine in able
        if engine is best or (rank(engine, wanted)[0] == equal and _idle(engine) and engine.load.requests <= most)
    ]
    return min(free, key=lambda engine: (-known[engine], rank(engine, wanted)))


def _known(engine: Engine, wanted: Wanted, keys: Sequence[bytes]) -> int:
    """Return how many pieces of the prompt an engine has: as its cache events say, or as was sent there."""
    sent = partial(engine.prefixes.known, wanted.prompt, engine.view.instance_id)
    if keys and engine.cached.follows(wanted.model_name):
        return max(engine.cached.known(wanted.model_name, keys), sent(RECENT_SECONDS))
    return sent()


def _idle(engine: Engine) -> bool:
    return engine.load.waiting == 0


def _digest(name: str, key: str) -> int:
    """Return the rendezvous hash, equal in every gateway: if an engine is lost, only its own keys move."""
    return int.from_bytes(hashlib.blake2b(f"{name}/{key}".encode(), digest_size=8).digest())
