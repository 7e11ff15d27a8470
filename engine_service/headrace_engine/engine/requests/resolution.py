"""The first phases of a start: tokenize the prompt and resolve the config; nothing is reserved yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from headrace_engine.chat_types import NOTHING_KNOWN, Chat, ChatAnswer
from headrace_engine.engine.config.field_checks import check_ids, is_set, tuple_of
from headrace_engine.engine.config.generation import Generation, Limits, check_prompt, check_prompt_length, resolve
from headrace_engine.engine.config.logit_rules import rules_of
from headrace_engine.engine.config.logits_processors import check_processors
from headrace_engine.engine.formats.frames import Verdict
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.models.prepare import Prepared
from headrace_engine.engine.requests.resume import check_delivered, check_handover
from headrace_engine.engine.requests.start_sequences import detail_options
from headrace_engine.engine.results.token_details import DetailOptions
from headrace_engine.engine.text.answers import in_format, of_tools
from headrace_engine.engine.text.stopping import Decoder
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.guided.calls.wanted import FORMAT, TOOLS
from headrace_engine.model_types import EffectiveConfig
from headrace_engine.request_parts import ResponseFormat
from headrace_engine.request_types import ConfigWarning, ResumedSequence, StartRequest
from headrace_engine.sampling_params import LogitRules

MAX_REQUEST_ID = 128
"""Maximum length of a request_id, in characters."""

MAX_OWNER = 256
"""Maximum length of an owner's name, in characters: every request and key retains it."""


@dataclass(frozen=True, slots=True)
class Start:
    """A StartRequest in progress, to one model.

    Attributes:
        arrival: time of its arrival.
    """

    request: StartRequest
    model: Model
    arrival: float


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of a prompt, and what is known of the answer to it."""

    ids: tuple[int, ...]
    warnings: tuple[ConfigWarning, ...]
    answer: ChatAnswer = NOTHING_KNOWN


@dataclass(frozen=True, slots=True)
class Resolved:
    """A start with its config resolved and every field checked.

    Attributes:
        rules: the changes of its fields to the logits.
        guided: its grammar, and the cost of that.
        decoding: creates a decoder of a sequence's text.
        resumed: the part of each sequence that another engine delivered.
        options: the details that readers receive of each token.
        warnings: all warnings.
    """

    prompt: Prompt
    generation: Generation
    rules: LogitRules | None
    guided: Verdict
    decoding: Callable[[], Decoder]
    resumed: list[ResumedSequence]
    options: DetailOptions
    warnings: tuple[ConfigWarning, ...]

    @property
    def left(self) -> list[ResumedSequence]:
        """The sequences that have not ended elsewhere."""
        return [one for one in self.resumed if not one.ended]


def check_start(request: StartRequest) -> None:
    """Refuse requests that no model could accept.

    Raises:
        InvalidArgument: naming field, value and range.
    """
    check_handover(request)
    for name, limit in (("request_id", MAX_REQUEST_ID), ("owner", MAX_OWNER)):
        length = len(getattr(request, name))
        if length > limit:
            raise InvalidArgument.field(name, f"has {length} characters; allowed: at most {limit}")


async def tokenize(start: Start, prepared: Prepared) -> Prompt:
    """Return the ids of a start's prompt.

    Raises:
        InvalidArgument: naming field, value and range.
    """
    request, model = start.request, start.model
    prompt, special = request.prompt, request.add_special_tokens
    vocab_size, max_length = model.effective.vocab_size, model.effective.config.max_length or 0
    if isinstance(prompt, str | Chat):
        found = await prepared.text.tokenize(prompt, special, max_length, request.party)
        ids = found.token_ids
        prepared.text.check_known(ids)
        check_prompt(ids, vocab_size, max_length, model.name)
        return Prompt(tuple(ids), found.warnings, found.answer)
    if special is not None:
        raise InvalidArgument.field("add_special_tokens", "is for text only; the prompt is ids")
    check_prompt_length(prompt, max_length, model.name)
    known = await prepared.text.in_turn(request.party, len(prompt), _known, prompt, vocab_size, prepared.holes)
    return Prompt(known, ())


def _known(ids: Sequence[int], vocab_size: int, holes: Collection[int]) -> tuple[int, ...]:
    check_ids("prompt", ids, vocab_size, holes)
    return tuple_of(ids)


async def resolve_config(start: Start, prepared: Prepared, prompt: Prompt) -> Resolved:
    """Merge a start's config with the model's defaults, and check the result.

    Raises:
        InvalidArgument: naming field, value and range.
        NotFound: UNKNOWN_LORA.
    """
    request, effective, length, holes = start.request, start.model.effective, len(prompt.ids), prepared.holes
    limits = replace(_limits(effective, length), holes=holes)
    generation = resolve(request.config, effective.generation_defaults, limits, effective.config.default_seed)
    check_processors(generation.effective.logits_processors, effective)
    if generation.effective.lora_name:
        start.model.adapters.find(generation.effective.lora_name)
    bad_words = await prepared.text.spell(generation.effective.bad_words, request.party)
    chat = request.prompt if isinstance(request.prompt, Chat) else None
    answer = in_format(prompt.answer, generation.effective.response_format, chat, generation.eos_ids)
    prompt = replace(prompt, answer=answer)
    guided, suspicious = await _guided(prepared, prompt, generation.effective.response_format, request.party)
    decoding = await prepared.text.decoding(generation, prompt.ids, request.party, prompt.answer.kept)
    return Resolved(
        prompt,
        generation,
        rules_of(generation.effective, bad_words, effective.vocab_size, holes),
        guided,
        decoding,
        check_delivered(request, generation, effective.vocab_size, length, holes),
        detail_options(generation, prepared),
        (*prompt.warnings, *generation.warnings, *suspicious, *_not_applied(prepared, request.config)),
    )


async def _guided(
    prepared: Prepared, prompt: Prompt, requested: ResponseFormat | None, party: str
) -> tuple[Verdict, tuple[ConfigWarning, ...]]:
    """Return the grammar of the answer, from the response format or from what calls are held to."""
    wanted = prompt.answer.wanted
    if wanted is None:
        return await prepared.formats.check(requested, party)
    if requested is not None and requested.schema is None:
        text = f"is enforced by a grammar of its own, which excludes response_format {requested.kind}"
        raise InvalidArgument.field("chat.tool_choice", f"{text}: leave one of them out")
    within = prompt.answer.format is not None and prompt.answer.format.or_json
    unreached = () if requested is None or within else await _unreached(prepared, requested, party)
    try:
        verdict, warnings = await prepared.formats.check(wanted, party)
    except InvalidArgument as error:
        if within:
            await prepared.formats.check(requested, party)  # What is wrong with it by itself is told as such.
        raise of_tools(error, beside=requested is not None) from None
    return verdict, (*map(_of_its_field, warnings), *unreached)


def _of_its_field(warning: ConfigWarning) -> ConfigWarning:
    """Return a warning about a grammar of calls with the field that it is about."""
    if warning.message.startswith(FORMAT):
        return warning
    begin = "" if warning.message.startswith(TOOLS) else f"{TOOLS}, in the grammar of calls: "
    return ConfigWarning("chat.tools", f"{begin}{warning.message}")


async def _unreached(prepared: Prepared, requested: ResponseFormat, party: str) -> tuple[ConfigWarning, ...]:
    """Check a format that has no effect beside calls, and return a warning of that."""
    await prepared.formats.check(requested, party)
    text = "response_format has no effect: by its tool_choice the answer is calls alone"
    return (ConfigWarning("config.response_format", text),)


def _limits(effective: EffectiveConfig, prompt_length: int) -> Limits:
    config = effective.config
    return Limits(
        model_name=config.model_name,
        vocab_size=effective.vocab_size,
        max_length=config.max_length or 0,
        prompt_length=prompt_length,
        max_lease=config.max_lease or math.inf,
        caching=config.enable_prefix_cache is not False,
    )


def _not_applied(prepared: Prepared, sent: GenerationConfig) -> tuple[ConfigWarning, ...]:
    """Return warnings about unsupported fields of the model's own generation config that this request does not set."""
    name_of = {warning: warning.field.removeprefix("config.") for warning in prepared.not_applied}
    return tuple(warning for warning, name in name_of.items() if not is_set(getattr(sent, name, None)))
