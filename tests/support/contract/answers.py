"""Requests of the conformance suite, and the ids of their answers."""

from __future__ import annotations

from headrace import Client, ResultQueue

from support.contract.places import MAX_BATCH, MODEL, Place

LONG = {"ignore_eos": True, "do_sample": False}
"""Fields of a request that runs, always in the same way, until its length ends it."""


def start(client: Client, tokens: int = 20, **fields: object) -> tuple[str, ResultQueue]:
    """Start a request to MODEL for this many tokens; return its handle and queue."""
    return client.start_request(MODEL, ids=[1, 2, 3], max_new_tokens=tokens, **{**LONG, **fields})  # type: ignore[arg-type]


def ended(client: Client, tokens: int = 20, **fields: object) -> tuple[str, ResultQueue]:
    """Start a request as `start` does, and wait until it has ended."""
    handle, queue = start(client, tokens, **fields)
    client.sync_request(handle)
    return handle, queue


def fill_batch(client: Client, place: Place) -> list[str]:
    """Have the slowest model run as many requests as it can, for as long as it can; return their handles."""
    count = MAX_BATCH[place.slowest]
    return [client.start_request(place.slowest, ids=[1, 2], **LONG)[0] for _ in range(count)]  # type: ignore[arg-type]


def ids_of(queue: ResultQueue) -> list[int]:
    """Read a queue to its end; return the ids."""
    return [token for elements in queue for token in elements.ids_from_generate]
