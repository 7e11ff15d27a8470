"""Rows that continue a sequence over drafted ids, as if these had been sampled."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ids
from dataclasses import replace

from headrace_engine.core.runner import SequenceStep
from headrace_engine.core.scheduling.row_options import with_options
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.guided.guide import GuideFailed
from headrace_engine.guided.library import LibraryFailed


def drafted_steps(sequence: Sequence, count: int, drafts: Ids[int]) -> list[SequenceStep]:
    """Return the row that computes the next `count` ids of a sequence, and one for each drafted id after them.

    Each row samples the token after its last id exactly as it would if the ids before had been sampled. There are
    fewer rows if the grammar does not allow a draft, or takes too long to follow it. The sequence is left as it was.
    """
    guide, length, computed = sequence.guide, len(sequence.ids), sequence.computed
    steps = [_detached_row(sequence, count)]
    try:
        sequence.guide = None if guide is None else guide.fork()
        sequence.computed += count
        for draft in drafts:
            if sequence.guide is not None:
                if not sequence.guide.allows(draft):
                    break
                sequence.guide.take([draft])
            sequence.ids.append(draft)
            steps.append(_detached_row(sequence, 1))
            sequence.computed += 1
    except (GuideFailed, LibraryFailed):
        assert guide is not None, "only a guide fails"
        guide.drafts = False
    finally:
        sequence.guide = guide
        sequence.go_back(length, computed)
    return steps


def _detached_row(sequence: Sequence, count: int) -> SequenceStep:
    """Return a row that shares no array with its sequence, which follows further ids before the row is computed."""
    step = sequence.step(count)
    if not sequence.plain:
        step = with_options(sequence, step)
    changes, processing = step.changes, step.processing
    if changes is not None:
        allowed = None if changes.allowed is None else array("I", changes.allowed)
        penalized, penalties = array("i", changes.penalized), array("d", changes.penalties)
        changes = replace(changes, penalized=penalized, penalties=penalties, allowed=allowed)
    if processing is not None:
        processing = replace(processing, ids=array("i", processing.ids))
    return replace(step, changes=changes, processing=processing)
