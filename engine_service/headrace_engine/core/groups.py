"""Sequences that share a prompt: one computes it, and the others begin with its blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from headrace_engine.core.sequence import Sequence
from headrace_engine.guided.guide import Guide
from headrace_engine.messages import AddSequence

_REMEMBERED = 1024
"""Groups of which it is known that their prompt was told."""

Entry = tuple[AddSequence, Guide | None]


class Groups:
    """Holds sequences back while another one of their group computes the prompt; then they find it in the prefix cache.

    Args:
        find: a sequence by its key, if it has not ended.
    """

    def __init__(self, find: Callable[[int], Sequence | None]) -> None:
        self._find = find
        self._leaders: dict[int, int] = {}
        self._held: defaultdict[int, list[Entry]] = defaultdict(list)
        self._scored: dict[int, None] = {}

    def __len__(self) -> int:
        """Sequences that are held back."""
        return sum(map(len, self._held.values()))

    def hold(self, request: AddSequence, guide: Guide | None) -> bool:
        """Whether a sequence has to wait. One that has not, while no other has the prompt, is who computes it."""
        if not request.group:
            return False
        leader = self._leader(request.group)
        if leader is None:
            self._leaders[request.group] = request.key
        elif not _has_prompt(leader):
            self._held[request.group].append((request, guide))
            return True
        return False

    def note_scored(self, group: int) -> None:
        """The log-probabilities of the prompt were told: no other one of the group has to tell them again."""
        self._scored[group] = None
        if len(self._scored) > _REMEMBERED:
            del self._scored[next(iter(self._scored))]

    def known(self, request: AddSequence) -> AddSequence:
        """The request as it is now that others of its group were there."""
        if request.group in self._scored:
            return replace(request, scored=len(request.prompt))
        return request

    def drop(self, key: int) -> None:
        """The sequence is wanted no more. It may be none of these."""
        for group, entries in list(self._held.items()):
            self._held[group] = [entry for entry in entries if entry[0].key != key]
            if not self._held[group]:
                del self._held[group], self._leaders[group]

    def released(self) -> list[Entry]:
        """Sequences that wait for nobody any more, each once."""
        free: list[Entry] = []
        for group in list(self._leaders):
            leader = self._leader(group)
            if leader is None or _has_prompt(leader):
                del self._leaders[group]
                free += self._free(group, self._held.pop(group, []), again=leader is None)
        return free

    def _free(self, group: int, entries: list[Entry], *, again: bool) -> list[Entry]:
        """All of them; the first alone where it has to compute the prompt again, as the one before it has ended."""
        if again and len(entries) > 1:
            self._leaders[group] = entries[0][0].key
            self._held[group] = entries[1:]
        return entries[:1] if again else entries

    def _leader(self, group: int) -> Sequence | None:
        key = self._leaders.get(group)
        return None if key is None else self._find(key)


def _has_prompt(sequence: Sequence) -> bool:
    return sequence.computed >= sequence.prompt_length
