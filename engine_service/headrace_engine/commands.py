"""Commands from the front half to a core, encoded by `ipc.py`, independent of the transport.

A *key* is a number that the front half assigns to a sequence and never reuses for one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace_engine.config import (
    ActivationQuant,
    ComputeDtype,
    ComputeUnit,
    KvCacheMode,
    ModelFormat,
    RopeScaling,
    Speculation,
    WeightQuant,
)
from headrace_engine.generation_config import BeamStopping, InterruptPolicy, LogitsProcessor
from headrace_engine.sampling_params import LogitRules, SamplingParams

MOST_ROWS = 16
"""Maximum number of rows of a step with drafted ids: with more, a CPU multiplies quantized weights otherwise."""

MOST_DRAFT_TOKENS = 256
"""Maximum number of ids that a draft model computes at once."""


@dataclass(frozen=True, slots=True)
class ProcessorFile:
    """A logits processor by its name, and the file that defines it; "": the launcher of the core provides it."""

    name: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class SerializePlan:
    """The only message to a process that writes a model in our own format.

    Attributes:
        path: the directory or hub name of the model, already resolved on this host.
        hub_only: the path is a name on a hub, even if a local path of that name exists.
        weight_quant_group_size: weights that share a scale; 0 = one scale per row.
        folder, name: folder and base name of the files.
        skip_if_exists: keep files that were made of the same model in the same way.
    """

    path: str
    folder: str
    name: str
    file_prefix: str = ""
    revision: str = ""
    hub: str = ""
    hub_only: bool = False
    dtype: ComputeDtype = ComputeDtype.AUTO
    weight_quant: WeightQuant = WeightQuant.NONE
    weight_quant_group_size: int = 0
    skip_if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """An adapter to load.

    Attributes:
        number: from 1; requests' sequences name it.
        path: its directory or file, already resolved on this host.
        digest: of its content, as `models.adapters` computes it.
        rank: its largest rank.
    """

    number: int
    path: str
    digest: str
    rank: int


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A smaller model, with the same vocabulary, whose ids are drafts.

    Attributes:
        path: its directory or file, already resolved on this host.
        max_length: maximum number of ids of a sequence that it drafts for.
    """

    path: str
    format: ModelFormat
    max_length: int


@dataclass(frozen=True, slots=True)
class CorePlan:
    """The first message to a core: the model, the backend, and every size that the caller chose.

    Attributes:
        path: the directory or file of the model, already resolved on this host.
        backend: name of the runner: "cpu", "torch", "cuda", or "auto": chosen by the device.
        num_threads: compute threads; 0 = physical CPU cores within quota and affinity.
        max_length: tokens of the longest sequence; 0 = the model's own limit.
        max_prefill_tokens: tokens computed in one step.
        num_blocks: blocks of the KV pool; 0 = sized from memory.
        num_host_blocks: blocks of the host tier, for what the pool evicts.
        prefix_cache_ttl: seconds after which unused cached blocks are dropped; None = never.
        memory_ratio: share of memory, as in the runtime config; None = the backend's default.
        vocab_size: rows to load of the vocabulary's tables, those that the tokenizer has ids for; 0 = all.
        weight_quant_group_size: weights that share a scale; 0 = one scale per row, None = the backend's default.
        stream_interval: minimum seconds between messages of tokens; outputs of faster steps are coalesced.
        step_target: seconds that a step beside running streams may take; 0: only max_prefill_tokens limits it; None:
            a few times what the streams take alone.
        speculation: source of drafted ids.
        max_drafts: maximum number of drafted ids of a sequence in a step.
        draft: the draft model; None: there is none.
        adapters: to load at the start.
        lora_max_num: adapters that are loaded at once, at most, with numbers from 1 on.
        lora_max_rank: largest rank of an adapter.
    """

    path: str
    format: ModelFormat
    file_prefix: str = ""
    backend: str = "auto"
    dtype: ComputeDtype = ComputeDtype.AUTO
    compute_unit: ComputeUnit | None = None
    device_list: tuple[int, ...] = ()
    num_threads: int = 0
    max_batch: int = 32
    max_length: int = 0
    max_prefill_tokens: int = 2048
    block_size: int = 16
    num_blocks: int = 0
    num_host_blocks: int = 0
    kv_cache_mode: KvCacheMode = KvCacheMode.DEFAULT
    enable_prefix_cache: bool = True
    prefix_cache_ttl: float | None = None
    memory_ratio: float | None = None
    rope_scaling: RopeScaling | None = None
    vocab_size: int = 0
    weight_quant: WeightQuant = WeightQuant.NONE
    weight_quant_group_size: int | None = None
    activation_quant: ActivationQuant = ActivationQuant.NONE
    logits_processors: tuple[ProcessorFile, ...] = ()
    stream_interval: float = 0.0
    step_target: float | None = 0.0
    speculation: Speculation = Speculation.OFF
    max_drafts: int = 7
    draft: DraftPlan | None = None
    adapters: tuple[AdapterPlan, ...] = ()
    lora_max_num: int = 0
    lora_max_rank: int = 0

    @property
    def max_rows(self) -> int:
        """Maximum number of rows of a step: one for each sequence, and one for each drafted id."""
        return self.max_batch if self.speculation is Speculation.OFF else max(self.max_batch, MOST_ROWS)

    def of_draft(self, draft: DraftPlan) -> CorePlan:
        """Return the plan of the runner of the draft model, whose pool has as many blocks."""
        return CorePlan(
            path=draft.path,
            format=draft.format,
            backend=self.backend,
            dtype=self.dtype,
            compute_unit=self.compute_unit,
            device_list=self.device_list,
            num_threads=self.num_threads,
            max_batch=MOST_ROWS,
            max_length=draft.max_length,
            max_prefill_tokens=MOST_DRAFT_TOKENS,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            kv_cache_mode=self.kv_cache_mode,
            memory_ratio=self.memory_ratio,
            vocab_size=self.vocab_size,
        )


@dataclass(frozen=True, slots=True)
class WantedText:
    """One text that a beam search has to return.

    Attributes:
        index: its place among the texts, the best first.
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
        wanted: the texts to return, and the keys of their sequences.
    """

    num_beams: int
    length_penalty: float = 1.0
    stopping: BeamStopping = BeamStopping.HEURISTIC
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
