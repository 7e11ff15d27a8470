"""Logits processors for tests: what they do to a row, and how some fail."""

from __future__ import annotations

import numpy as np
from headrace_engine.backends.processors import Process


def raise_one(logits, ids, arguments):
    logits[int(arguments[0])] += arguments[1]


def put(logits, ids, arguments):
    logits[int(arguments[0])] = arguments[1]


def forbid_the_last(logits, ids, arguments):
    logits[ids[-1]] = -np.inf


def nothing(logits, ids, arguments):
    pass


def forbid_all(logits, ids, arguments):
    logits[:] = -np.inf


def lift_all(logits, ids, arguments):
    logits[:] = 5.0


def fail(logits, ids, arguments):
    raise LookupError("no such word")


def leave(logits, ids, arguments):
    raise SystemExit("enough")


def fail_in_no_words(logits, ids, arguments):
    class Wordless(Exception):
        def __str__(self):
            raise RuntimeError

    raise Wordless


def fail_in_half_a_pair(logits, ids, arguments):
    raise ValueError("bad \udcff name")


def leave_nan(logits, ids, arguments):
    logits[11] = np.nan


def leave_infinity(logits, ids, arguments):
    logits[12] = np.inf


def return_a_copy(logits, ids, arguments):
    return logits * 2


def flatten(logits, ids, arguments):
    logits.shape = (2, -1)
    ids.resize(1, refcheck=False)
    logits += arguments.sum()


def by_all_ids(logits, ids, arguments):
    """Another id for each history."""
    logits[int(ids.sum()) % len(logits)] = 1e4


PROCESSES: dict[str, Process] = {
    process.__name__: process
    for process in (
        raise_one, put, forbid_the_last, nothing, forbid_all, lift_all, fail,
        leave, fail_in_no_words, fail_in_half_a_pair, leave_nan, leave_infinity, return_a_copy,
        flatten, by_all_ids,
    )
}  # fmt: skip
