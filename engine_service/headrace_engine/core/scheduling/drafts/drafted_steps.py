"""Rows that continue a sequence over drafted ids, as if these had been sampled."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Ids
from contextlib import contextmanager
from dataclasses import replace

from headrace_engine.core.runner import SequenceStep
from headrace_engine.core.scheduling.rows import next_row
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.guided.guide import Guide, GuideFailed
from headrace_engine.guided.library import LibraryFailed


def drafted_steps(sequence: Sequence, count: int, drafts: Ids[int]) -> list[SequenceStep]:
    """Return the row that computes the next `count` ids of a sequence, and one for each drafted id after them.

    Each row samples the token after its last id exactly as it would if the ids before had been sampled. There are
    fewer rows if the grammar does not allow a draft, or takes too long to follow it. The sequence is left as it was.
    """
    steps = [_detached_row(sequence, count)]
    with ahead(sequence):
        sequence.computed += count
        for draft in drafts:
            if not take_draft(sequence, draft):
                break
            steps.append(_detached_row(sequence, 1))
            sequence.computed += 1
    return steps


@contextmanager
def ahead(sequence: Sequence) -> Iterator[None]:
    """Let a sequence go on over drafted ids, by `take_draft`; then leave it as it was."""
    guide, length, computed = sequence.guide, len(sequence.ids), sequence.computed
    try:
        if guide is not None:
            # Drafts drive a fork: the sequence's own guide follows only ids that were sampled.
            sequence.guide = _fork(guide)
        yield
    finally:
        if guide is not None and sequence.guide is not None:
            guide.drafts &= sequence.guide.drafts
        sequence.guide = guide
        sequence.go_back(length, computed)


def take_draft(sequence: Sequence, draft: int) -> bool:
    """Append a drafted id to a sequence that is `ahead`.

    Returns:
        False if its grammar does not allow it, or takes too long to follow it.
    """
    guide = sequence.guide
    if guide is not None:
        if not (guide.drafts and guide.allows(draft)):
            return False
        try:
            guide.take([draft])
        except (GuideFailed, LibraryFailed):
            guide.drafts = False
            return False
    sequence.ids.append(draft)
    return True


def _fork(guide: Guide) -> Guide:
    """Return a guide to be taken over drafted ids; itself, which then takes none, if the library fails."""
    try:
        return guide.fork()
    except LibraryFailed:
        guide.drafts = False
        return guide


def _detached_row(sequence: Sequence, count: int) -> SequenceStep:
    """Return a row that shares no array with its sequence, which follows further ids before the row is computed."""
    step = next_row(sequence, count)
    changes, processing = step.changes, step.processing
    if changes is not None:
        allowed = None if changes.allowed is None else array("I", changes.allowed)
        penalized, penalties = array("i", changes.penalized), array("d", changes.penalties)
        changes = replace(changes, penalized=penalized, penalties=penalties, allowed=allowed)
    if processing is not None:
        processing = replace(processing, ids=array("i", processing.ids))
    return replace(step, changes=changes, processing=processing)
