"""Commands from the front half to a core.

A *key* is a number that the front half assigns to a sequence and never reuses for one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace_engine.generation_config import BeamStopping, InterruptPolicy, LogitsProcessor
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
from headrace_engine.sampling_params import LogitRules, SamplingParams


@dataclass(frozen=True, slots=True)
class WantedText:
    """One text that a beam search has to return.

    Attributes:
        index: its rank among the texts, from 0 for the best.
        key: key of the sequence that it becomes.
        delivered: ids that were delivered of it earlier, which are not reported again.
    """

    index: int
    key: int
    delivered: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BeamPlan:
    """A beam search, in place of a sequence.

    Attributes:
        num_beams: number of beams, at least 2.
        length_penalty: exponent of the length, in the score of a text.
        stopping: when it ends.
        stops: sequences of ids that end a text, as stop_ids do.
        words: words that end a text likewise, with the id that completes one.
        skips_special: special ids have no text, except those in `kept`.
        wanted: the texts to return, and the keys of their sequences.
    """

    num_beams: int
    length_penalty: float = 1.0
    stopping: BeamStopping = BeamStopping.HEURISTIC
    stops: tuple[tuple[int, ...], ...] = ()
    words: tuple[str, ...] = ()
    skips_special: bool = True
    kept: tuple[int, ...] = ()
    wanted: tuple[WantedText, ...] = ()


@dataclass(frozen=True, slots=True)
class AddSequence:
    """Compute this sequence.

    Attributes:
        prompt: ids of the prompt.
        generated: ids that an earlier core generated; they count as generated.
        index: number of the sequence in its request, for the random numbers.
        group: sequences of one group, above 0, have the same prompt, which is computed once; 0: no group.
        more: an AddSibling follows immediately.
        eos_ids: any of these ends the sequence, once min_new is reached.
        max_new: tokens after which it ends with MAX_LENGTH.
        min_new: tokens before which eos_ids are masked, and stop_ids do not end it.
        stop_ids: any of these ends it with STOP_WORD; the front half determines which, and checks other stops.
        rules: further changes to its logits; None: none.
        processors: change its logits after the rules, in this order.
        grammar: the grammar that its text must match, as `guided` compiles it; "": any text.
        grammar_bytes: size of the compiled grammar when it was checked.
        grammar_seconds: processor time that compiling it took then.
        owner: who started the request: sequences of several owners start, and their grammars are compiled, in turn.
        priority: higher is served first.
        interrupt_policy: RETURN ends it with INTERRUPTED where RESUME would preempt it for lack of blocks.
        use_speculation: its ids may be drafted.
        prompt_logprobs: report prompt logprobs, with this many top logprobs; None: do not.
        pooled: report the sum of the last hidden states of the prompt's tokens from this one on; None: do not. Not
            together with prompt_logprobs.
        prompt_reported: index of the first prompt token to report: an earlier core reported those before it.
        tensors: report the vectors of each token.
        adapter: number of its adapter; 0: none.
        adapter_digest: of its content: keys and values depend on it.
        beams: search for the most likely texts instead; their tokens are reported when it ends. None: no search.
    """

    key: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new: int
    generated: tuple[int, ...] = ()
    index: int = 0
    group: int = 0
    more: bool = False
    eos_ids: tuple[int, ...] = ()
    min_new: int = 0
    stop_ids: tuple[int, ...] = ()
    rules: LogitRules | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    grammar: str = ""
    grammar_bytes: int = 0
    grammar_seconds: float = 0.0
    owner: str = ""
    priority: int = 0
    use_prefix_cache: bool = True
    cache_salt: str = ""
    interrupt_policy: InterruptPolicy = InterruptPolicy.RESUME
    use_speculation: bool = True
    prompt_logprobs: int | None = None
    pooled: int | None = None
    prompt_reported: int = 0
    tensors: bool = False
    adapter: int = 0
    adapter_digest: str = ""
    beams: BeamPlan | None = None

    @property
    def is_followed(self) -> bool:
        """True if its text has a grammar, or the texts of its beams are read for words."""
        return bool(self.grammar) or (self.beams is not None and bool(self.beams.words))

    @property
    def is_first(self) -> bool:
        """True if it is the first sequence of its request, whose prompt the others share."""
        return self.group in (0, self.key)

    @property
    def weight(self) -> int:
        """Number of sequences that it counts as: the first of a beam search, as all of its beams."""
        return 1 if self.beams is None else self.beams.num_beams * self.is_first


@dataclass(frozen=True, slots=True)
class AddSibling:
    """Compute one more sequence of a group: it equals that of the AddSequence before it, except for these fields.

    Attributes:
        more: another one follows immediately.
    """

    key: int
    index: int = 0
    generated: tuple[int, ...] = ()
    more: bool = False

    def whole(self, first: AddSequence) -> AddSequence:
        """Return the command with everything that it has in common with the first sequence of its group."""
        return replace(first, key=self.key, index=self.index, generated=self.generated, more=self.more)


def in_common(group: Sequence[AddSequence]) -> list[AddSequence | AddSibling]:
    """Return the commands that add all sequences of a group, with what they have in common once: it may be large.

    The sequences of a beam search are added by one command.
    """
    first, *others = group
    if first.beams is not None:
        wanted = tuple(WantedText(each.index, each.key, each.generated) for each in group)
        return [replace(first, generated=(), group=0, beams=replace(first.beams, wanted=wanted))]
    siblings = [AddSibling(each.key, each.index, each.generated, more=each is not group[-1]) for each in others]
    return [replace(first, more=bool(siblings)), *siblings]


@dataclass(frozen=True, slots=True)
class EndSequence:
    """End this sequence. An unknown key is ignored: the core may have ended it while this message was on its way."""

    key: int


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Load an adapter, in place of the one of its number, which no sequence uses. Answered by an AdapterLoaded."""

    adapter: AdapterPlan


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer with a Pong of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Free everything and exit."""


CoreCommand = CorePlan | AddSequence | AddSibling | EndSequence | LoadAdapter | Ping | Shutdown
