"""What hostile clients do, kind by kind. Each attack ends with a status, which is counted by its reason."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from random import Random
from typing import Any

import grpc
from headrace import Client, HeadraceError, RetryPolicy
from headrace._transport.methods import METHODS
from headrace_proto.v1 import session_pb2 as wire
from headrace_proto.v1.request_service_pb2_grpc import RequestServiceStub

_NEVER = RetryPolicy(give_up_after=0)
_PATIENCE = 90.0
"""Seconds within which every answer has to be there, whatever else is asked of the servers."""

_DEFECTS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS}


@dataclass
class Mix:
    """Where attacks go, and what came of them.

    Attributes:
        address: of the gateway.
        engine: address of the engine itself.
        model: name of the model that honest streams read.
        length: its longest sequence.
        files: paths of hostile models.
        seen: how often each kind ended how.
        defects: ends that no client may cause.
    """

    address: str
    engine: str
    model: str
    length: int
    files: list[str]
    seen: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def client(self, address: str = "") -> Client:
        """A client of its own, which asks once."""
        return Client(address or self.address, retry=_NEVER)

    def count(self, kind: str, outcome: str) -> None:
        """Count an end."""
        self.seen[f"{kind}: {outcome}"] += 1

    def attempt(self, kind: str, call: Callable[[], Any]) -> None:
        """Make a call of the client, and count how it ends."""
        try:
            call()
        except HeadraceError as error:
            self.count(kind, getattr(error, "reason", "") or type(error).__name__)
            if type(error).__name__ == "InternalServerError":
                self.defects.append(f"{kind}: {error}")
        else:
            self.count(kind, "served")


def files(mix: Mix, chance: Random) -> None:
    """Inspect and install what is no model."""
    path = chance.choice(mix.files)
    with mix.client() as client:
        mix.attempt("files", lambda: client.inspect_model(path=path, timeout=_PATIENCE))
        mix.attempt("files", lambda: client.install_model(f"bad{chance.randrange(4)}", path=path, timeout=_PATIENCE))


def formats(mix: Mix, chance: Random) -> None:
    """Ask for grammars that explode, or nest, or are some other's business."""
    letter, count = chance.choice("abcdefgh"), chance.randrange(300, 1000)
    schema: dict[str, Any] = {"type": "string", "format": "path"}
    for _ in range(chance.choice([3, 200])):
        schema = {"type": "array", "items": schema}
    lark = "start: r0\n" + "".join(f"r{n}: r{n + 1} r{n + 1}\n" for n in range(60)) + 'r60: "a"\n'
    wanted = chance.choice(
        [
            {"type": "regex", "regex": f"({letter}{{1000}}){{{count}}}"},
            {"type": "json_schema", "json_schema": schema},
            {"type": "grammar", "grammar": {"text": lark, "syntax": "LARK"}},
            {"type": "choice", "choices": ["yes", "no"]},
        ]
    )
    _start(mix, "formats", chance, max_new_tokens=4, response_format=wanted)


def stops(mix: Mix, chance: Random) -> None:
    """Ask for as many stops and bad words as a request may have; some callers go before they are answered."""
    if chance.random() < 0.5:
        ids = [[3 + chance.randrange(370) for _ in range(16)] for _ in range(4_000)]
        words = ["".join(chance.choices("abcdefgh ", k=30)) for _ in range(2_000)]
        _start(mix, "stops", chance, max_new_tokens=1, stop_words_ids=ids, stop_words=words)
    else:
        size = chance.choice([16, 230])
        bad = ["".join(chance.choices("abcdefgh ", k=size)) for _ in range(65_000 // size)]
        timeout = chance.choice([1.0, _PATIENCE])
        _start(mix, "stops", chance, max_new_tokens=1, bad_words=bad, timeout=timeout)


def attaches(mix: Mix, chance: Random) -> None:
    """Attach thousands of channels in one session: to nothing, or all to one handle; read nothing of it."""
    count = chance.choice([2_000, 20_000, 40_000])
    with mix.client() as client:
        handle, _ = client.start_request(mix.model, ids=_ids(chance, 4), max_new_tokens=32, ignore_eos=True)
        known = chance.random() < 0.5
        with _session(mix.address) as (say, answers):
            target = handle if known else handle[:-8] + "00000000"
            for first in range(1, count, 2_000):
                numbers = range(first, min(first + 2_000, count + 1))
                say(wire.SessionRequest(attach=[wire.Attach(channel=n, handle=target, window=0) for n in numbers]))
            mix.over.wait(2)
            mix.count("attaches", "known" if known else "unknown")
            del answers
        mix.attempt("attaches", lambda: client.release_request(handle))


def long_prompts(mix: Mix, chance: Random) -> None:
    """Send prompts as long as the model takes, or far longer, and many sequences at once."""
    kind = chance.randrange(3)
    if kind == 0:
        prompt = _ids(chance, mix.length - 8)
        _start(mix, "long prompts", chance, ids=prompt, max_new_tokens=2, priority=chance.choice([0, 0, 5]))
    elif kind == 1:
        text = "The mill stood by the stream, and its wheel turned day and night. " * 15_000
        _start(mix, "long prompts", chance, text=text, ids=None, max_new_tokens=1)
    else:
        _start(mix, "long prompts", chance, ids=_ids(chance, 900), max_new_tokens=16, n=64, ignore_eos=True)


def garbage(mix: Mix, chance: Random) -> None:
    """Send bytes that are no message to every method, and messages far too large."""
    with grpc.insecure_channel(chance.choice([mix.address, mix.engine])) as channel:
        for name, method in METHODS.items():
            if method.streams:
                continue
            call = channel.unary_unary(f"/{name}", request_serializer=bytes, response_deserializer=bytes)
            _raw(mix, call, chance.randbytes(chance.randrange(1, 200)) + b"\xff")
        name = "/headrace.v1.RequestService/Tokenize"
        large = channel.unary_unary(name, request_serializer=bytes, response_deserializer=bytes)
        if chance.random() < 0.2:
            _raw(mix, large, b"\x0a\x80\x80\x80\x18" + b"x" * (48 << 20))


def leavers(mix: Mix, chance: Random) -> None:
    """Begin answers, and leave them in the middle."""
    with mix.client() as client:

        def leave() -> None:
            with client.generate(mix.model, ids=_ids(chance, 20), max_new_tokens=64, ignore_eos=True) as text:
                for _ in range(chance.randrange(6)):
                    next(text, None)

        mix.attempt("leavers", leave)


KINDS: dict[str, Callable[[Mix, Random], None]] = {
    "files": files,
    "formats": formats,
    "stops": stops,
    "attaches": attaches,
    "long prompts": long_prompts,
    "garbage": garbage,
    "leavers": leavers,
}


def _start(mix: Mix, kind: str, chance: Random, **fields: Any) -> None:
    wanted = {"ids": _ids(chance, 5), **fields}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    with mix.client() as client:

        def whole() -> None:
            handle, queue = client.start_request(mix.model, **{"timeout": _PATIENCE, **wanted})
            try:
                for choice in queue.choices:
                    list(choice)
            finally:
                client.release_request(handle)

        mix.attempt(kind, whole)


def _raw(mix: Mix, call: Any, data: bytes) -> None:
    try:
        call(data, timeout=_PATIENCE)
    except grpc.RpcError as error:
        code = error.code()
        mix.count("garbage", code.name)
        if code in _DEFECTS:
            mix.defects.append(f"garbage: {code.name}: {error.details()}")
    else:
        mix.count("garbage", "served")


class _session:  # noqa: N801 - reads as a function
    """A session on the wire that nobody reads."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._out: SimpleQueue[wire.SessionRequest | None] = SimpleQueue()

    def __enter__(self) -> tuple[Callable[[wire.SessionRequest], None], Iterator[Any]]:
        self._answers = RequestServiceStub(self._channel).Session(iter(self._out.get, None))
        self._out.put(wire.SessionRequest(options=wire.SessionOptions(client="hostile")))
        return self._out.put, self._answers

    def __exit__(self, *_: object) -> None:
        self._answers.cancel()
        self._out.put(None)
        self._channel.close()


def _ids(chance: Random, count: int) -> list[int]:
    return [3 + chance.randrange(370) for _ in range(count)]
