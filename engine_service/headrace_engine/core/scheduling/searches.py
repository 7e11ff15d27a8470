"""The beam searches of a scheduler, and the sequences that compute their beams."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from headrace_engine.characters.stop_words import WordReader
from headrace_engine.core.scheduling.beam_search import BeamSearch
from headrace_engine.core.scheduling.beams import Beam
from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus
from headrace_engine.core.scheduling.tables import BlockTables


class Searches:
    """Gives beams their sequences, once a search has chosen them.

    The first beam of each parent takes over the parent's sequence. The others get new ones, which share the parent's
    full blocks and a copy of the block that it is filling. After a preemption one sequence computes what all beams have
    in common, and then branches.

    Args:
        tables: the scheduler's block tables.
    """

    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables
        self._by_key: dict[int, BeamSearch] = {}
        self._searches: dict[BeamSearch, None] = {}
        self._numbers = count(1)

    def join(self, sequence: Sequence, words: WordReader | None = None) -> None:
        """Begin the search of a waiting sequence, if it has one.

        Args:
            words: finds its stop words, if it has some.

        Raises:
            ValueError: one of its keys is in use.
        """
        plan = sequence.request.beams
        if plan is None:
            return
        search = BeamSearch(sequence.request, plan, sequence.guide, words)
        if not self._by_key.keys().isdisjoint(search.keys):
            raise ValueError(f"one of the keys {search.keys} is in use")
        search.members.append(sequence)
        sequence.search = search
        self._searches[search] = None
        self._by_key |= dict.fromkeys(search.keys, search)

    def leave(self, search: BeamSearch) -> None:
        """Remove a search that has ended."""
        del self._searches[search]
        for key in [key for key, each in self._by_key.items() if each is search]:
            del self._by_key[key]

    def find(self, key: int) -> Sequence | None:
        """Return the first sequence of the search that has a text for this key."""
        search = self._by_key.get(key)
        return None if search is None or key not in search.keys else search.members[0]

    def due(self) -> list[BeamSearch]:
        """Return the searches with beams that need sequences."""
        return [search for search in self._searches if self.is_due(search)]

    def is_due(self, search: BeamSearch) -> bool:
        """Return True if the search goes on, and has beams that need sequences."""
        return search in self._searches and (search.chosen or _is_restored(search))

    def missing_blocks(self, search: BeamSearch) -> int:
        """Return the number of blocks that the new sequences of its beams need."""
        length = len(search.request.prompt) + search.length
        return sum(self._tables.missing_to_branch(_parent(search, beam), length) for beam in _branches(search))

    def branch(self, search: BeamSearch) -> list[Sequence]:
        """Give each beam a sequence; check first that there are blocks for all. Return the new ones."""
        branched = {beam: self._branched(search, beam) for beam in _branches(search)}
        members = []
        for beam in search.beams:
            # The parent's own sequence goes on with its blocks; a branched one has references, and a block of its own.
            member = branched.get(beam) or _parent(search, beam)
            if beam not in branched and search.chosen:
                member.ids.append(search.ids(beam)[-1])
            member.guide, member.pause = beam.guide, None
            members.append(member)
        search.members, search.chosen = members, False
        return list(branched.values())

    def unneeded(self, search: BeamSearch) -> list[Sequence]:
        """Return the sequences of beams that do not go on."""
        parents = {_parent(search, beam) for beam in search.beams}
        return [member for member in search.members if member not in parents]

    def restore(self, search: BeamSearch) -> Sequence:
        """Return the sequence that computes again what all beams have in common; it has no blocks."""
        sequence = search.members[0]
        search.members, search.chosen = [sequence], False
        search.forget_results()
        texts = [search.ids(beam) for beam in search.beams]
        sequence.begin_again(texts[0], self._tables.cursor(sequence.request), search.beams[0].guide)
        for beam in search.beams:
            beam.parent = None
        sequence.pause = _common(texts) if len(texts) > 1 else None
        return sequence

    def _branched(self, search: BeamSearch, beam: Beam) -> Sequence:
        parent = _parent(search, beam)
        # No key of the front half, which knows the keys of the search alone.
        request = replace(parent.request, key=-next(self._numbers))
        sequence = Sequence(request, parent.arrival, None, beam.guide)
        sequence.search, sequence.tables = search, parent.tables
        sequence.begin_again(search.ids(beam), None, beam.guide)
        sequence.skip_prompt()
        self._tables.branch(parent, sequence)
        sequence.status, sequence.started, sequence.advanced = SequenceStatus.RUNNING, True, parent.advanced
        return sequence


def _is_restored(search: BeamSearch) -> bool:
    """True if what all beams have in common has been computed."""
    first = search.members[0]
    ready = first.pause is not None and first.status is SequenceStatus.RUNNING and first.computed >= first.pause
    return ready and not first.in_flight


def _parent(search: BeamSearch, beam: Beam) -> Sequence:
    return search.members[0] if beam.parent is None else beam.parent


def _branches(search: BeamSearch) -> list[Beam]:
    """Return the beams that need a new sequence: all but the first of each parent."""
    taken: set[Sequence] = set()
    found = []
    for beam in search.beams:
        parent = _parent(search, beam)
        if parent in taken:
            found.append(beam)
        taken.add(parent)
    return found


def _common(texts: list[list[int]]) -> int:
    """Return the number of ids that all texts begin with."""
    first, last = min(texts), max(texts)
    return next((count for count, pair in enumerate(zip(first, last, strict=True)) if pair[0] != pair[1]), len(first))
