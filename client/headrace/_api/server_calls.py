"""Client methods about servers: tokenizing, statistics, and what a server is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from headrace_proto.v1 import engine_service_pb2 as wire

from headrace._api.making_calls import MakingCalls
from headrace._transport.message_iterator import MessageIterator
from headrace._values import calls
from headrace._values.calls import ENGINES
from headrace._values.convert_models import detokenized_of, server_of, stats_of, tokenized_of
from headrace._values.fill import fill
from headrace._values.prompt import ChatMessages, Prompt
from headrace.fields import ChatFields
from headrace.model_types import Detokenized, EngineStat, ServerInfo, Tokenized


class ServerCalls(MakingCalls):
    """Methods to tokenize, and to get information and statistics of servers. `timeout` is in seconds."""

    def tokenize(
        self,
        model: str,
        prompt: Prompt | None = None,
        *,
        text: str | None = None,
        messages: ChatMessages | None = None,
        timeout: float | None = None,
        **fields: Unpack[ChatFields],
    ) -> Tokenized:
        """Return the token ids of a text or chat, as `start_request` would use them, and the rendered text.

        Args:
            model: name of the model.
            prompt: text or messages; or pass one of the next two.
            text: text, without a chat template.
            messages: conversation for the chat template, as in `start_request`.
            timeout: seconds; None: the client's timeout.
            **fields: fields of `headrace.fields.ChatFields`.

        Raises:
            TypeError: unknown keyword, or not exactly one prompt.
            NotFoundError: no such model.
            InvalidRequestError: BAD_TEMPLATE, or a prompt of the wrong type.
        """
        request = calls.tokenize(model, prompt, text=text, messages=messages, fields=fields)
        return self._quick_call(f"{ENGINES}/Tokenize", request, wire.TokenizeResponse, tokenized_of, timeout)

    def detokenize(
        self, model: str, ids: Sequence[int], *, skip_special_tokens: bool | None = None, timeout: float | None = None
    ) -> Detokenized:
        """Return the text of token ids, and the bytes of each id.

        Args:
            model: name of the model.
            ids: token ids.
            skip_special_tokens: leave special tokens out of the text; None: the engine's default.
            timeout: seconds; None: the client's timeout.

        Raises:
            NotFoundError: no such model.
            InvalidRequestError: an id is outside the vocabulary.
        """
        request = wire.DetokenizeRequest()
        fill(request, {"model_name": model, "token_ids": ids, "skip_special_tokens": skip_special_tokens})
        return self._quick_call(f"{ENGINES}/Detokenize", request, wire.DetokenizeResponse, detokenized_of, timeout)

    def engine_stats(
        self, model: str = "", *, engine_ids: Sequence[str] = (), timeout: float | None = None
    ) -> list[EngineStat]:
        """Return current statistics, one entry per engine and model.

        Args:
            model: name of the model; "" = all.
            engine_ids: engines to ask; () = all.
            timeout: seconds; None: the client's timeout.
        """
        request = wire.GetEngineStatRequest()
        fill(request, {"model_name": model, "engine_ids": engine_ids})
        answer = wire.GetEngineStatResponse
        return self._quick_call(
            f"{ENGINES}/GetEngineStat", request, answer, lambda answer: stats_of(answer.stats), timeout
        )

    def watch_engine_stats(
        self, model: str = "", *, engine_ids: Sequence[str] = (), interval: float | None = None
    ) -> MessageIterator[list[EngineStat]]:
        """Iterate over statistics, as `engine_stats` returns them, until the iterator is closed.

        Args:
            model: name of the model; "" = all.
            engine_ids: engines to watch; () = all.
            interval: seconds between two results, at least 0.1; None: 1.
        """
        request = wire.WatchEngineStatRequest()
        fill(request, {"model_name": model, "engine_ids": engine_ids, "interval": interval})
        return self._watch(f"{ENGINES}/WatchEngineStat", request, lambda answer: stats_of(answer.stats))

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Return name, version and features of the server.

        Args:
            timeout: seconds; None: the client's timeout.
        """
        request = wire.GetServerInfoRequest()
        return self._quick_call(f"{ENGINES}/GetServerInfo", request, wire.GetServerInfoResponse, server_of, timeout)
