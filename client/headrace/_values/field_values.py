"""Values of configs with a form of their own. Made by `make fields` from the wire contract."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Required, TypedDict

Seconds = float | timedelta
"""A time span: seconds, or a timedelta."""

TokenIdLists = Sequence[Sequence[int]]


class Lease(TypedDict, total=False):
    """How long a request is kept while nobody is attached to it or asks for it.

    No part is longer than max_lease: a longer one is refused with INVALID_FIELD, "for ever" (0) and a longer default
    are lowered to it, as the effective config shows.

    Attributes:
        running: A running request is then stopped (LEASE_EXPIRED). Default 60 s; 0 = for ever, as far as max_lease
            allows.
        ended: An ended request is then released. Default 10 min; 0 = for ever, as far as max_lease allows.
    """

    running: Seconds
    ended: Seconds


class LogitsProcessor(TypedDict, total=False):
    """Code that the engine's operator started it with, which changes the logits that tokens are sampled from.

    It comes after penalties, n-grams, minimum lengths, bad words, biases and allowed ids, and before temperature; what
    those, or a response format, rule out stays ruled out.

    Attributes:
        name: One of EffectiveConfig.logits_processors. Required.
        arguments: What it is given, as float32; their meaning is up to the processor. At most 4096 for all processors
            of a request together. Default: none.
    """

    name: Required[str]
    arguments: Sequence[float]
