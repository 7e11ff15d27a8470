"""Counts of calls for the gateway's metrics: how many, how they ended, how long they took, and whose they were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from headrace_proto.pure.histograms import REQUEST_SECONDS, Histogram

GRPC, HTTP = "grpc", "http"

OK = "OK"
"""How a call ended that did not fail."""

CANCELLED = "CANCELLED"
"""How a call ended whose caller left."""


class Outcome:
    """How one call ends.

    Attributes:
        code: OK, or the name of its status.
        key: name of its caller's API key; "": it has none.
        reason: why it failed; "": it did not.
    """

    __slots__ = ("code", "key", "reason")

    def __init__(self) -> None:
        self.code = OK
        self.key = ""
        self.reason = ""


class CallCounts:
    """Counts of calls since the gateway's start. Names of methods, codes, reasons and keys are a bounded many.

    Attributes:
        ended: calls that have ended, by API, method and code.
        seconds: how long they took, by API and method.
        by_key: calls by the name of their API key.
        refused: failures by the name of the API key, and reason.
    """

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str, str]] = Counter()
        self.seconds = defaultdict[tuple[str, str], Histogram](lambda: Histogram(REQUEST_SECONDS))
        self.by_key: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def counting(self, api: str, method: str) -> Iterator[Outcome]:
        """Count a call, as what is noted of its outcome says; one that ends with an exception was left."""
        outcome, began = Outcome(), perf_counter()
        try:
            yield outcome
        except BaseException:
            if outcome.code == OK:
                outcome.code = CANCELLED
            raise
        finally:
            self.ended[api, method, outcome.code] += 1
            self.seconds[api, method].note(perf_counter() - began)
            if outcome.key:
                self.by_key[outcome.key] += 1
            if outcome.reason:
                self.refused[outcome.key, outcome.reason] += 1
