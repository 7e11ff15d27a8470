"""Garbage collection in the process of a server, where each full one stops every stream."""

from __future__ import annotations

import gc


def freeze_objects() -> None:
    """Collect garbage, and exempt every object that is left from later collections until the next call.

    A full collection looks at all objects, most of which are modules and tables that live as long as the process: some
    100 ms for an engine's. For programs alone: in a process of others, what is exempt is theirs.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
