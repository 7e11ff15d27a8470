"""What sequences wait for before they wait for their turn: a guide, and a prompt that another one computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace_engine.core.groups import Groups
from headrace_engine.core.guides import GuideMaker, Guides
from headrace_engine.core.sequence import Sequence
from headrace_engine.guided.guide import Guide
from headrace_engine.messages import AddSequence


class Entrance:
    """Sequences that cannot be scheduled yet.

    Args:
        open_guides: makes what compiles grammars for the model, when the first one comes.
        find: a sequence that the scheduler has, by its key.
        max_length: tokens of the longest sequence.
    """

    def __init__(
        self, open_guides: Callable[[], GuideMaker], find: Callable[[int], Sequence | None], max_length: int
    ) -> None:
        self._guides = Guides(open_guides)
        self._groups = Groups(find)
        self._max_length = max_length

    def __bool__(self) -> bool:
        """Something waits here."""
        return bool(self._guides) or bool(self._groups)

    def refusal(self, request: AddSequence) -> str:
        """Why a sequence cannot be computed, which the front half should have known; "" where it can."""
        if not request.prompt:
            return "the prompt is empty"
        length = len(request.prompt) + max(request.max_new, len(request.generated))
        if length > self._max_length:
            return f"prompt {len(request.prompt)} + generated make {length} tokens, max_length is {self._max_length}"
        return ""

    def hold(self, request: AddSequence) -> bool:
        """Whether a sequence has to wait here."""
        if request.grammar:
            self._guides.begin(request)
            return True
        return self._groups.hold(request, None)

    def drop(self, key: int) -> None:
        """The sequence is wanted no more. It may be none of these."""
        self._guides.drop(key)
        self._groups.drop(key)

    def note_scored(self, group: int) -> None:
        """The log-probabilities of the prompt of a group were told."""
        if group:
            self._groups.note_scored(group)

    def known(self, request: AddSequence) -> AddSequence:
        """A sequence that has all it needs: one of a group whose prompt was told does not tell it again."""
        return self._groups.known(request)

    def ready(self, *, block: bool) -> Iterator[tuple[AddSequence, Guide | Exception | None]]:
        """Sequences that have all they need, or never will, each once.

        Args:
            block: nothing else is to be done, so wait a moment for one.
        """
        released = self._groups.released()
        yield from released
        for request, guide in self._guides.ready(block=block and not released):
            if isinstance(guide, Exception) or not self._groups.hold(request, guide):
                yield request, guide

    def close(self) -> None:
        """Compile no more."""
        self._guides.close()
