"""vSurge, over the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

from headrace._base.closing import Closing
from headrace._base.refused_names import RefusedNames
from headrace._base.retry import RetryPolicy
from headrace._values.refusals import invalid
from headrace.client import Client
from headrace.compat.answers import Start
from headrace.compat.counterparts import in_their_names, matched, not_supported, warn_caller
from headrace.compat.local import end_model, name_of, open_client, run_model
from headrace.errors import InvalidRequestError
from headrace.vsurge.generation import Generation
from headrace.vsurge.model import Model
from headrace.vsurge.sampling_params import SamplingParams

_INSTALL_NAMES = {
    "max_concurrent_decodes": "max_batch", "max_prefill_length": "max_prefill_tokens", "seed": "default_seed",
    "sharding_axis_dims": "tensor_parallel",
}  # fmt: skip
_UNMATCHED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "interleaved_mode": ((True, False), "steps hold prompts and running answers alike"),
    "slot_clear_steps": ((0,), "memory is freed when a request ends"),
    "bytecode_decode": ((True, False), "text comes in whole characters"),
    "verbose": ((True, False), "set the levels of the loggers headrace and headrace_engine"),
    "prefill_lengths": ((), "nothing is compiled for lengths: give max_prefill_length"),
}
_PROBE = "The wheel turns: 1234.5 – é 水 🙂\n  two  spaces"

_ONE_PREFILL = "prompts share the tokens of a step: leave it out"


class vSurge(RefusedNames, Closing):  # noqa: N801
    """Generates text with one model. Made by `from_model`.

    As a context manager it stops on exit.

    Attributes:
        client: the Headrace client under it, with all other methods.
        vsurge_name: name of the model for the client's methods.
        processor: the tokenizer that it was made with.
    """

    refused: ClassVar[Mapping[str, str]] = {
        "driver": "the engine is reached with client",
        "pause": "use client.stop_model, which lets running requests end",
        "resume": "use start",
        "replace_graphstate": "install a model of another name, and release this one",
        "get_device_memory_stats": "use client.get_model(vsurge_name)[0].effective",
        "get_vdriver_metrics": "use client.engine_stats(vsurge_name)",
        "generate_once": "use generate",
        "complete": "use generate with stream=True",
    }

    def __init__(self, client: Client, name: str, model: Model, processor: Any, extra_eos: Sequence[int]) -> None:
        self.client = client
        self.vsurge_name = name
        self.processor = processor
        self._model = model
        self._extra_eos = list(extra_eos)

    @classmethod
    def from_model(
        cls,
        model: Model,
        processor: Any,
        max_concurrent_decodes: int | None = None,
        max_concurrent_prefill: int | None = None,
        extra_eos_token_ids: int | Sequence[int] | None = None,
        max_prefill_length: int | None = None,
        max_length: int | None = None,
        vsurge_name: str | None = None,
        seed: int | None = None,
        *,
        address: str | None = None,
        **options: Any,
    ) -> Self:
        """Return a vSurge of a model; nothing runs before `compile` or `start`.

        Args:
            model: what `AutoEasyDeLModelForCausalLM.from_pretrained` returned.
            processor: a tokenizer, with which `start` compares that of the engine; None: no comparison. The engine
                converts text with the tokenizer in the model's files.
            max_concurrent_decodes: maximum number of sequences in a step; None: the engine's default.
            max_concurrent_prefill: None or 1: prompts share the tokens of a step.
            extra_eos_token_ids: ids that end each request too.
            max_prefill_length: maximum number of tokens computed in a step, not of prompts; None: the engine's default.
            max_length: maximum length of a sequence in tokens; None: as from_pretrained says, else the model's.
            vsurge_name: name of the model for the client's methods; None: the last part of its path.
            seed: seed of each request whose sampling_params have none, so that the same prompt gives the same text;
                None: random.
            address: address for `headrace.Client`, such as "localhost:7070"; None: an engine in this process, which
                needs the package headrace-engine, and ends with it.
            **options: further arguments of `headrace.Client`, and of an engine in this process.

        Raises:
            InvalidRequestError: a value has no counterpart here.
        """
        if not isinstance(model, Model):
            raise invalid("model", model, "what AutoEasyDeLModelForCausalLM.from_pretrained returned")
        if max_concurrent_prefill not in (None, 1):
            raise not_supported("max_concurrent_prefill", max_concurrent_prefill, _ONE_PREFILL)
        given = {
            "max_batch": max_concurrent_decodes, "max_prefill_tokens": max_prefill_length, "max_length": max_length,
            "default_seed": seed,
        }  # fmt: skip
        fields = {**model.fields, **{name: value for name, value in given.items() if value is not None}}
        extra = [extra_eos_token_ids] if isinstance(extra_eos_token_ids, int) else extra_eos_token_ids or ()
        options = matched(options, _UNMATCHED)
        # A full queue is no error of a batch: it waits for its turn.
        client = open_client(address, **{"retry": RetryPolicy(retry_overload=True), **options})
        return cls(client, vsurge_name or name_of(model.path), Model(model.path, fields), processor, extra)

    create_odriver = from_model

    def compile(self) -> None:
        """Install the model: its files are checked, and its tokenizer is read. Nothing if that was done.

        Raises:
            HeadraceError: as `install_model` of the client.
        """
        try:
            self.client.install_model(self.vsurge_name, self._model.path, **self._model.fields)
        except InvalidRequestError as error:
            raise in_their_names(error, _INSTALL_NAMES) from error

    def start(self) -> None:
        """Start the model, and install it before if that was not done.

        Raises:
            HeadraceError: as `install_model` and `start_model` of the client.
        """
        try:
            run_model(self.client, self.vsurge_name, self._model.path, **self._model.fields)
        except InvalidRequestError as error:
            raise in_their_names(error, _INSTALL_NAMES) from error
        self._compare_processor()

    def stop(self) -> None:
        """Stop the model and release it, also on a server; `start` installs it again.

        Raises:
            HeadraceError: as `stop_model` and `release_model` of the client.
        """
        end_model(self.client, self.vsurge_name)

    def generate(
        self,
        prompts: str | Sequence[str],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        stream: bool = False,
    ) -> Generation:
        """Return the generation of texts that go on with prompts, to be awaited or iterated.

        Args:
            prompts: texts, which are sent as they are, without a chat template.
            sampling_params: how to generate, for all prompts or one for each; None: `SamplingParams()`.
            stream: `async for` yields samples as they change; False: the final ones alone, as `await` does.

        Raises:
            InvalidRequestError: prompts are no texts, or sampling_params not one, or not one for each.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        for text in texts:
            if not isinstance(text, str):
                raise invalid("prompts", text, "texts; start_request of headrace.Client takes ids and messages")
        params = _params(sampling_params, len(texts))
        starts = [self._start(*each) for each in zip(texts, params, strict=True)]
        return Generation(self.client, self.vsurge_name, starts, stream=stream)

    def count_tokens(self, text_or_conversation: str | Sequence[Any]) -> int:
        """Return the number of tokens of a text, or of a conversation with the chat template.

        Raises:
            HeadraceError: as `tokenize` of the client.
        """
        if isinstance(text_or_conversation, str):
            return len(self.client.tokenize(self.vsurge_name, text=text_or_conversation).ids)
        options: Any = {"messages": text_or_conversation, "add_generation_prompt": False}
        return len(self.client.tokenize(self.vsurge_name, **options).ids)

    def close(self) -> None:
        """Close the client, and free what runs in this process; what a server runs stays as it is."""
        self.client.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self.close()

    def _start(self, text: str, params: SamplingParams) -> Start:
        fields = params.build()
        if self._extra_eos:
            fields["stop_token_ids"] = [*fields.get("stop_token_ids", ()), *self._extra_eos]
        return partial(self.client.start_request, self.vsurge_name, text=text, **fields)

    def _compare_processor(self) -> None:
        if self.processor is None:
            return
        ours = list(self.client.tokenize(self.vsurge_name, text=_PROBE).ids)
        if list(self.processor(_PROBE)["input_ids"]) != ours:
            text = "the processor gives other ids than the tokenizer in the model's files, which the engine uses"
            warn_caller(text, UserWarning)


def _params(given: Any, count: int) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    params = list(given)
    if len(params) != count:
        raise invalid("sampling_params", given, f"one, or one for each of {count} prompts")
    for each in params:
        if not isinstance(each, SamplingParams):
            raise invalid("sampling_params", each, "a SamplingParams")
    return params
