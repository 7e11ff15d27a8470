"""LMDeploy's pipeline, over the client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Unpack

from headrace._base.closing import Closing
from headrace._base.retry import RetryPolicy
from headrace._streaming.result_queue import ResultQueue
from headrace._values.refusals import invalid
from headrace.client import Client
from headrace.compat.answers import Answers, Piece, slots_of
from headrace.compat.counterparts import in_their_names, not_supported
from headrace.compat.local import name_of, open_client, run_model
from headrace.errors import HeadraceError, InvalidRequestError
from headrace.lmdeploy.call_arguments import CallArguments, configs_of
from headrace.lmdeploy.chat_template import ChatTemplateConfig
from headrace.lmdeploy.engine_configs import EngineConfig, PytorchEngineConfig, TurbomindEngineConfig
from headrace.lmdeploy.generation_config import GenerationConfig
from headrace.lmdeploy.response import Response, response_of

Conversation = Sequence[Mapping[str, Any]]
"""Messages as in OpenAI's API."""

Prompts = str | Conversation | Sequence[str | Conversation]
"""One prompt, or several."""


class Pipeline(Closing):
    """Answers prompts with one model. Made by `pipeline`.

    As a context manager it closes on exit.

    Attributes:
        client: the Headrace client under it, with all other methods.
        model_name: name of the model for the client's methods.
    """

    def __init__(self, client: Client, model_name: str, at_once: int, template: ChatTemplateConfig) -> None:
        self.client = client
        self.model_name = model_name
        self._at_once = at_once
        self._template = template

    def __call__(
        self,
        prompts: Prompts,
        gen_config: GenerationConfig | Sequence[GenerationConfig] | None = None,
        do_preprocess: bool = True,
        **arguments: Unpack[CallArguments],
    ) -> Response | list[Response]:
        """Return the answers to prompts.

        Args:
            prompts: a string or a conversation, or a list of them.
            gen_config: how to generate, for all prompts or one for each; None: 512 tokens with top_k 40, top_p 0.8 and
                temperature 0.8.
            do_preprocess: apply the chat template to strings too, each as the message of a user; False: they are sent
                as they are.
            **arguments: deprecated arguments of `CallArguments`.

        Returns:
            The Response to one prompt, or a list with one for each.

        Raises:
            TypeError: there is no such argument, or gen_config says it too.
            HeadraceError: a prompt could not be started, or failed, as in `start_request` of the client and `Get` of
                its queues. The others are stopped.
        """
        found: dict[int, Response] = {}
        for piece in self.stream_infer(prompts, gen_config, do_preprocess, **arguments):
            known = found.setdefault(piece.session_id, piece)
            if known is not piece:
                known.extend(piece)
        answers = [found[index] for index in sorted(found)]
        return answers[0] if _is_one(prompts) else answers

    def stream_infer(
        self,
        prompts: Prompts,
        gen_config: GenerationConfig | Sequence[GenerationConfig] | None = None,
        do_preprocess: bool = True,
        **arguments: Unpack[CallArguments],
    ) -> Iterator[Response]:
        """Return an iterator over pieces of the answers to all prompts, as they arrive.

        `session_id` says which prompt a piece belongs to, `text` has its new text, and `finish_reason` is set in its
        last piece. Closing or dropping the iterator stops the answers. Arguments and errors are those of a call; wrong
        arguments are raised at once.
        """
        given: list[Any] = [prompts] if _is_one(prompts) else list(prompts)
        configs = configs_of(gen_config, arguments, len(given))
        starts = [self._start(*each, do_preprocess) for each in zip(given, configs, strict=True)]
        return self._pieces(starts)

    def close(self) -> None:
        """End the pipeline and free what runs in this process; what a server runs stays as it is."""
        self.client.close()

    def _pieces(self, starts: Sequence[Callable[[], tuple[str, ResultQueue]]]) -> Iterator[Response]:
        arrived: SimpleQueue[Piece] = SimpleQueue()
        answers = Answers(self.client, starts, self._at_once, arrived.put)
        running = len(starts)
        try:
            while running:
                piece = arrived.get()
                running -= piece.last
                yield self._response(piece, starts[piece.index])
        finally:
            answers.close()

    def _response(self, piece: Piece, start: Any) -> Response:
        error = piece.error
        if isinstance(error, InvalidRequestError):
            if error.reason == "PROMPT_TOO_LONG":
                return Response("", 0, self._length(start.keywords), piece.index, "length")
            raise in_their_names(error, GenerationConfig.foreign) from error
        return response_of(piece)

    def _length(self, prompt: Mapping[str, Any]) -> int:
        """Return the number of tokens of a prompt that is too long; 0 where it is too long to be counted."""
        kind = "text" if "text" in prompt else "messages"
        try:
            return len(self.client.tokenize(self.model_name, **{kind: prompt[kind]}).ids)
        except HeadraceError:
            return 0

    def _start(self, prompt: Any, config: GenerationConfig, do_preprocess: bool) -> Callable[..., Any]:
        """Return what starts the request of a prompt."""
        template, fields = self._template, config.build()
        if template.stop_words:
            fields["stop_words"] = [*fields.get("stop_words", ()), *template.stop_words]
        if isinstance(prompt, str) and (template.raw or not do_preprocess):
            fields["text"] = prompt
        elif template.raw or not do_preprocess:
            raise invalid("prompts", prompt, "strings, where no chat template is applied")
        else:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            fields |= {"text": template.render(messages)} if template.has_pieces else {"messages": messages}
        return partial(self.client.start_request, self.model_name, **fields)


def pipeline(
    model_path: str,
    model_name: str | None = None,
    backend_config: TurbomindEngineConfig | PytorchEngineConfig | None = None,
    chat_template_config: ChatTemplateConfig | None = None,
    log_level: str = "ERROR",
    *,
    address: str | None = None,
    **options: Any,
) -> Pipeline:
    """Return a pipeline of a model, which is installed and started.

        pipe = pipeline("HuggingFaceTB/SmolLM2-135M-Instruct")
        print(pipe(["Hi, pls intro yourself", "Shanghai is"]))

    Scripts need no `if __name__ == "__main__":` for it, whatever the config says: processes that the engine starts run
    programs of their own and never import the script. A script that starts processes itself, with multiprocessing,
    needs it: a spawned one imports the script, and would make another pipeline. A forked one cannot use a pipeline of
    its parent (RuntimeError).

    Args:
        model_path: directory, file or hub name on the engine's host; with an address also the name of a model there.
        model_name: name of the model for the client's methods; None: the last part of model_path.
        backend_config: how to install the model; None: the engine's defaults. Both classes lead to the same engine.
        chat_template_config: a chat template instead of the model's own; None: the model's.
        log_level: minimum level of what `headrace` logs in this process, and the engine where it runs in it.
        address: address for `headrace.Client`, such as "localhost:7070"; None: an engine in this process, which needs
            the package headrace-engine, and ends with the pipeline.
        **options: further arguments of `headrace.Client`, and of an engine in this process.

    Raises:
        ValueError: there is no such level, or a model of that name runs with another config.
        HeadraceError: as `install_model` and `start_model` of the client; fields have LMDeploy's names.
    """
    _set_level(log_level)
    if backend_config is not None and not isinstance(backend_config, EngineConfig):
        raise invalid("backend_config", backend_config, "a TurbomindEngineConfig or a PytorchEngineConfig")
    # A full queue is no error of a batch: it waits for its turn.
    client = open_client(address, **{"retry": RetryPolicy(retry_overload=True), **options})
    try:
        name = _run(client, model_path, model_name, backend_config)
        slots = slots_of(client.get_model(name))
    except InvalidRequestError as error:
        client.close()
        raise in_their_names(error, (backend_config or EngineConfig).foreign) from error
    except BaseException:
        client.close()
        raise
    return Pipeline(client, name, slots, chat_template_config or ChatTemplateConfig())


def _run(client: Client, path: str, name: str | None, config: EngineConfig | None) -> str:
    """Run the model at a path, unless the path is the name of one that is there, and return its name."""
    if name is None and path in {info.model_name for info in client.list_models()}:
        if config is not None:
            text = f"{path} is installed there already, and keeps its config: leave backend_config out"
            raise not_supported("backend_config", config, text)
        client.start_model(path)
        return path
    name = name or name_of(path)
    run_model(client, name, path, **(config.build() if config is not None else {}))
    return name


def _set_level(level: str) -> None:
    if level not in logging.getLevelNamesMapping():
        raise ValueError(f"log_level = {level!r}: must be one of {', '.join(logging.getLevelNamesMapping())}")
    for name in ("headrace", "headrace_engine"):
        logging.getLogger(name).setLevel(level)


def _is_one(prompts: Any) -> bool:
    """Return whether prompts are one: a string, or a conversation."""
    if isinstance(prompts, str):
        return True
    if isinstance(prompts, Mapping) or not isinstance(prompts, Sequence):
        raise invalid("prompts", prompts, "a string, a list of messages, or a list of either")
    return bool(prompts) and isinstance(prompts[0], Mapping)
