"""The beams of one request, and the best texts so far. It knows no blocks.

As in `generate` of transformers: of the continuations of all beams, those that end a text and are among the first
num_beams become texts; the best num_beams others become the beams of the next step.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from headrace_engine.characters.stop_words import Reading, WordReader
from headrace_engine.core.runner import Candidate, Sampled
from headrace_engine.core.scheduling.beams import Beam, Link, Text, id_of, ids_back, tokens_of
from headrace_engine.generation_config import BeamStopping
from headrace_engine.guided.guide import Guide
from headrace_engine.ipc.commands import AddSequence, BeamPlan
from headrace_engine.result_types import FinishReason

if TYPE_CHECKING:
    from headrace_engine.core.scheduling.sequence import Sequence as CoreSequence


@dataclass(frozen=True, slots=True)
class _Option:
    """A continuation of a beam."""

    score: float
    beam: int
    candidate: Candidate

    @property
    def order(self) -> tuple[float, int, int]:
        """Sort key: best first, ties by beam, then by id."""
        return -self.score, self.beam, self.candidate[0]


class BeamSearch:
    """Beams of equal length, each computed by a sequence of the scheduler.

    Args:
        request: its `beams` are set.
        guide: at the start of the text; None: the text has no grammar.
        words: finds stop words; None: there are none.

    Attributes:
        keys: keys of the sequences that wait for a text.
        beams: those of the next step, best first.
        texts: the best that have ended, best first, num_beams at most.
        members: the sequences that compute the beams, in their order. Alone, before there are several beams and after
            a preemption, the first computes what all have in common.
        length: number of tokens of each beam.
        chosen: the beams were chosen, and have no sequences yet.
        over: it has ended.
    """

    def __init__(
        self, request: AddSequence, plan: BeamPlan, guide: Guide | None, words: WordReader | None = None
    ) -> None:
        self.request = request
        self.plan = plan
        self.keys = [each.key for each in plan.wanted]
        self.beams = [Beam(guide=guide) if words is None else Beam(guide=guide, reading=words.start)]
        self._words = words
        self.texts: list[Text] = []
        self.members: list[CoreSequence] = []
        self.length = 0
        self.chosen = self.over = False
        self._results: dict[CoreSequence, Sampled] = {}
        self._stops = frozenset(plan.stops)
        self._stop_lengths: dict[int, set[int]] = {}  # By the last id of a stop.
        for ids in self._stops:
            self._stop_lengths.setdefault(ids[-1], set()).add(len(ids))

    @property
    def wanted_candidates(self) -> int:
        """Number of candidates of each beam: the next beams are among them, whichever of their ids end a text."""
        ends = len(self._ends)
        return self.plan.num_beams + (ends if self._words is None else max(ends, self.plan.num_beams))

    @property
    def _ends(self) -> set[int]:
        """Ids that may end a text, whatever it says."""
        return {*self.request.eos_ids, *self.request.stop_ids, *self._stop_lengths}

    def slots(self, member: CoreSequence) -> int:
        """Return the number of slots of the batch that a member takes: the first has those of beams to come."""
        return 1 if member is not self.members[0] else self.plan.num_beams - len(self.members) + 1

    def drop(self, key: int) -> bool:
        """Drop the text of a key; return True if no other is wanted."""
        self.keys.remove(key)
        return not self.keys

    def take(self, member: CoreSequence, result: Sampled) -> bool:
        """Record the candidates of a beam; return True if those of all beams are there."""
        self._results[member] = result
        return len(self._results) == len(self.beams)

    def forget_results(self) -> None:
        """Drop the candidates of beams that will be computed again."""
        self._results.clear()

    def select(self) -> None:
        """Choose the next beams, and take the texts that end.

        Raises:
            GuideFailed, LibraryFailed: a grammar cannot be followed any further.
        """
        results = [self._results[member] for member in self.members]
        self._results.clear()
        self.length += 1
        options = self._options(results)
        last = self.length >= self.request.max_new
        for option in islice(options, self.plan.num_beams):
            if reason := self._reason(option, last):
                self._end(option, results[option.beam], reason)
        going = () if last else (option for option in options if self._reason(option, last) is None)
        chosen = list(islice(going, self.plan.num_beams))
        self.over = self._is_over(chosen)
        if not self.over:
            self.beams = list(self._continued(chosen, results))
            self.chosen = True

    def ids(self, beam: Beam) -> list[int]:
        """Return all ids of a beam, those of the prompt first."""
        return [*self.request.prompt, *(id_of(token) for token in tokens_of(beam.last))]

    def result(self, index: int) -> tuple[list[Sampled], FinishReason]:
        """Return the tokens of a text, by its index, and why it ended; none where there are fewer texts."""
        if index >= len(self.texts):
            return [], FinishReason.NO_TOKEN_LEFT
        return tokens_of(self.texts[index].last), self.texts[index].reason

    def _options(self, results: Sequence[Sampled]) -> list[_Option]:
        """Return the continuations of all beams, best first."""
        pairs = enumerate(zip(self.beams, results, strict=True))
        found = [
            _Option(beam.score + candidate[1], number, candidate)
            for number, (beam, result) in pairs
            for candidate in result.candidates or ()
        ]
        best = sorted(found, key=attrgetter("order"))
        # Any id may complete a word: as in transformers, beams go on with those that do not of so many.
        return best if self._words is None else best[: max(2, 1 + len(self._ends)) * self.plan.num_beams]

    def _reason(self, option: _Option, last: bool) -> FinishReason | None:
        """Return why a text ends with a continuation; None: it does not."""
        if self.length > self.request.min_new:
            if option.candidate[0] in self.request.stop_ids or self._completes_stop(option) or self._read(option)[1]:
                return FinishReason.STOP_WORD
            if option.candidate[0] in self.request.eos_ids:
                return FinishReason.EOS
        return FinishReason.MAX_LENGTH if last else None

    def _completes_stop(self, option: _Option) -> bool:
        lengths = self._stop_lengths.get(option.candidate[0])
        if lengths is None:
            return False
        ids = [option.candidate[0], *islice(ids_back(self.beams[option.beam].last), max(lengths) - 1)]
        return any(tuple(ids[length - 1 :: -1]) in self._stops for length in lengths if length <= len(ids))

    def _read(self, option: _Option) -> tuple[Reading, bool]:
        """Return where a text stands after a continuation, and whether that completes a stop word."""
        reading = self.beams[option.beam].reading
        return (reading, False) if self._words is None else self._words.read(reading, option.candidate[0])

    def _end(self, option: _Option, result: Sampled, reason: FinishReason) -> None:
        text = Text(self._normalized(option.score, self.length), self._link(option, result), reason)
        insort(self.texts, text, key=lambda each: -each.score)
        del self.texts[self.plan.num_beams :]

    def _is_over(self, chosen: Sequence[_Option]) -> bool:
        """Return True if no beam goes on, or none can become better than the texts that there are."""
        if not chosen:
            return True
        if len(self.texts) < self.plan.num_beams:
            return False
        if self.plan.stopping is BeamStopping.FIRST:
            return True
        longest = self.plan.stopping is BeamStopping.NEVER and self.plan.length_penalty > 0
        best = self._normalized(chosen[0].score, self.request.max_new if longest else self.length)
        return best <= self.texts[-1].score

    def _continued(self, chosen: Sequence[_Option], results: Sequence[Sampled]) -> Iterator[Beam]:
        """Yield the next beams. The last one of each parent takes its guide over, after the others have theirs."""
        last = {option.beam: number for number, option in enumerate(chosen)}
        guides: list[Guide | None] = []
        for number, option in enumerate(chosen):
            guide = self.beams[option.beam].guide
            guides.append(guide if guide is None or last[option.beam] == number else guide.branch())
        for option, guide in zip(chosen, guides, strict=True):
            if guide is not None:
                guide.take([option.candidate[0]])
            link, parent = self._link(option, results[option.beam]), self.members[option.beam]
            yield Beam(option.score, link, guide, self._read(option)[0], parent)

    def _link(self, option: _Option, result: Sampled) -> Link:
        token_id, _, logprob = option.candidate
        asked = self.request.sampling
        token = Sampled(token_id, logprob if asked.logprobs else None, top=result.top[: asked.top_logprobs])
        return Link(self.beams[option.beam].last, token)

    def _normalized(self, score: float, length: int) -> float:
        """Return the score of a text: the sum divided by a power of the length, as far as floats reach."""
        try:
            divisor = float(length) ** self.plan.length_penalty
        except OverflowError:
            divisor = math.inf
        return score / divisor if divisor else math.copysign(math.inf, score)
