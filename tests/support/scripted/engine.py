"""An engine with scripted answers, and the methods of `headrace_engine.engine.engine.Engine`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NoReturn
from zlib import crc32

from headrace_engine.chat_types import Chat
from headrace_engine.config import ModelFormat, RuntimeConfig
from headrace_engine.engine.models.kept_models import Replaced
from headrace_engine.engine.sessions.sessions import Sessions
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import NotFound
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.model_types import EffectiveConfig, ModelDescription, ModelState, ModelView, ServerInfo
from headrace_engine.request_types import AcceptedRequest, Detokenized, RequestView, StartRequest, Tokenized
from headrace_engine.result_types import (
    Elements,
    EndRecord,
    FinishReason,
    GenerateStatus,
    PrefixReuse,
    ReadResult,
    RequestStat,
    SequenceView,
)
from headrace_engine.stat_types import EngineStat

HANDLE = "e1/0011/" + "ab" * 16
STAT = RequestStat(arrival_time=100.5, context_token_length=3, generated_token_length=2)


def tokens(position: int, *ids: int, text: str = "") -> ReadResult:
    """Return tokens of a sequence that goes on."""
    before = crc32(b"")
    after = crc32(b"".join(each.to_bytes(4, "little") for each in ids), before)
    elements = Elements(position, list(ids), text or f"<{position}>", before, after, prefix=PrefixReuse(2, 1))
    return ReadResult(GenerateStatus.GENERATING, elements)


def end(position: int, reason: FinishReason = FinishReason.EOS) -> ReadResult:
    """Return the end of a sequence."""
    return ReadResult(reason.status, None, EndRecord(reason, position, "", 7, STAT))


class ScriptedEngine:
    """Answers from its attributes, and records each call.

    Attributes:
        calls: names and arguments of the calls, in order.
        failures: by method, the exception that it raises.
        script: items that readers get, in order; an exception is raised; an event is waited for.
        closed: by method, set when its iterator was closed.
        noted: invoked at each call.
    """

    def __init__(self, name: str = "e1") -> None:
        self.name, self.instance_id = name, "0011"
        self.draining = False
        self.pools = WorkPools()
        self.calls: list[tuple[str, Any]] = []
        self.failures: dict[str, BaseException] = {}
        self.script: list[ReadResult | BaseException | asyncio.Event] = [tokens(0, 5, 6), tokens(2, 7), end(3)]
        self.closed = {"read": asyncio.Event(), "generate": asyncio.Event(), "watch_model": asyncio.Event()}
        self.sync_cancelled = asyncio.Event()
        self.release_sync = asyncio.Event()
        self.models = {"smol": _view("smol", ModelState.INITIAL)}
        self.live_requests = 0
        self.sessions = Sessions(_unknown, list, dict, lambda version: ([], version))
        self.noted: Callable[[], None] = lambda: None
        self._watchers: list[asyncio.Queue[ModelView]] = []

    def _called(self, method: str, *arguments: Any) -> None:
        self.calls.append((method, arguments))
        self.noted()
        if method in self.failures:
            raise self.failures[method]

    async def start(self, declared: Sequence[RuntimeConfig] = ()) -> list[Replaced]:
        self._called("start", *declared)
        return []

    async def close(self) -> None:
        self._called("close")

    def refuse(self) -> None:
        self.draining = True

    async def drain(self, limit: float) -> None:
        """Wait for readers, if there are any, whatever the limit."""
        self._called("drain", limit)
        self.draining = True
        if self.live_requests:
            await self.closed["read"].wait()

    # Models.

    def set_state(self, state: ModelState, model_name: str = "smol", **more: Any) -> None:
        """Set a model's state and more of its view, and notify all watchers."""
        self.models[model_name] = replace(self.models[model_name], state=state, **more)
        for watcher in self._watchers:
            watcher.put_nowait(self.models[model_name])

    async def install_model(self, config: RuntimeConfig, *, no_wait: bool = False) -> ModelView:
        self._called("install_model", config, no_wait)
        return self.models.setdefault(config.model_name, _view(config.model_name, ModelState.INITIAL))

    async def start_model(self, model_name: str, *, no_wait: bool = False) -> ModelView:
        self._called("start_model", model_name, no_wait)
        return self.get_model(model_name)

    async def stop_model(self, model_name: str, *, no_wait: bool = False) -> ModelView:
        self._called("stop_model", model_name, no_wait)
        return self.get_model(model_name)

    async def release_model(self, model_name: str, *, no_wait: bool = False) -> ModelView:
        self._called("release_model", model_name, no_wait)
        return self.get_model(model_name)

    def get_model(self, model_name: str) -> ModelView:
        self._called("get_model", model_name)
        if model_name not in self.models:
            raise NotFound(f'no model "{model_name}"', reason="UNKNOWN_MODEL", metadata={"model_name": model_name})
        return replace(self.models[model_name], effective=EffectiveConfig(RuntimeConfig(model_name), kv_tokens=64))

    def list_models(self) -> list[ModelView]:
        return list(self.models.values())

    async def watch_model(self, model_name: str) -> AsyncIterator[ModelView]:
        queue: asyncio.Queue[ModelView] = asyncio.Queue()
        self._watchers.append(queue)
        try:
            for view in self.list_models():
                yield view
            while True:
                yield await queue.get()
        finally:
            self._watchers.remove(queue)
            self.closed["watch_model"].set()

    async def inspect_model(self, model_path: str, **where: Any) -> ModelDescription:
        self._called("inspect_model", model_path, where)
        return ModelDescription(
            ModelFormat.GGUF, "llama", "{}", GenerationConfig(top_k=0), 64, 100, 1000, 4000, 8, "r1"
        )

    # Requests.

    def arriving(self, owner: str, request_id: str) -> AbstractContextManager[None]:
        return nullcontext()

    async def start_request(self, request: StartRequest) -> AcceptedRequest:
        self._called("start_request", request)
        return _accepted(request)

    async def validate_request(self, request: StartRequest) -> None:
        self._called("validate_request", request)

    async def stop_request(self, handle: str, owner: str) -> tuple[SequenceView, ...]:
        self._called("stop_request", handle, owner)
        return (_sequence(),)

    async def release_request(self, handle: str, owner: str) -> None:
        self._called("release_request", handle, owner)

    async def sync_request(
        self, *, handle: str | None = None, model_name: str | None = None, owner: str = ""
    ) -> list[RequestView]:
        self._called("sync_request", handle, model_name, owner)
        try:
            await self.release_sync.wait()
        except asyncio.CancelledError:
            self.sync_cancelled.set()
            raise
        return [_request()]

    async def get_request(self, **arguments: Any) -> tuple[RequestView, Elements | None]:
        self._called("get_request", arguments)
        return _request(), tokens(0, 5, 6).elements

    def list_requests(self, owner: str, **arguments: Any) -> tuple[list[RequestView], str]:
        self._called("list_requests", owner, arguments)
        return [_request(), _request()], "next"

    def read(self, handle: str, index: int, from_position: int, owner: str) -> AsyncIterator[ReadResult]:
        self._called("read", handle, index, from_position, owner)
        return self._play("read")

    async def generate(
        self, request: StartRequest
    ) -> AsyncIterator[tuple[AcceptedRequest | None, int, ReadResult | None]]:
        self._called("generate", request)
        try:
            yield _accepted(request), 0, None
            async for result in self._play("generate"):
                yield None, 0, result
        finally:
            self.closed["generate"].set()

    async def _play(self, method: str) -> AsyncIterator[ReadResult]:
        try:
            for item in self.script:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, asyncio.Event):
                    await item.wait()
                else:
                    yield item
        finally:
            self.closed[method].set()

    # Statistics and tokenizers.

    def engine_stats(self, model_name: str = "") -> list[EngineStat]:
        self._called("engine_stats", model_name)
        return [EngineStat(model_name or "smol", ModelState.RUNNING, self.name, self.instance_id, 1, 100.5, running=2)]

    def server_info(self) -> ServerInfo:
        return ServerInfo(self.name, self.instance_id, "1.0", "build 7", ("text",), 99.5, ("CPU",), 1, self.draining)

    async def tokenize(
        self, model_name: str, prompt: str | Chat, add_special_tokens: bool | None = None, party: str = ""
    ) -> Tokenized:
        self._called("tokenize", model_name, prompt, add_special_tokens)
        return Tokenized([1, 2], "text")

    async def detokenize(
        self, model_name: str, token_ids: Sequence[int], skip_special_tokens: bool, party: str = ""
    ) -> Detokenized:
        self._called("detokenize", model_name, list(token_ids), skip_special_tokens)
        return Detokenized("é", [b"\xc3", b"\xa9"])


def _unknown(handle: str, owner: str) -> NoReturn:
    """Refuse every request that a session attaches."""
    raise NotFound(f"no request has the handle {handle!r}")


def _view(model_name: str, state: ModelState) -> ModelView:
    return ModelView(model_name, "e1", state, ModelState.RUNNING, 100.5)


def _accepted(request: StartRequest) -> AcceptedRequest:
    return AcceptedRequest(
        HANDLE, request.request_id or "drawn", request.model_name, request.config, 7, 3, "cd" * 32, waiting_ahead=1
    )


def _sequence() -> SequenceView:
    return SequenceView(0, GenerateStatus.FINISHED, 3, 7, STAT, end=end(3).end, prefix=PrefixReuse(2, 1))


def _request() -> RequestView:
    return RequestView(_accepted(StartRequest("smol", "hi", GenerationConfig(seed=7))), (_sequence(),), attached=1)
