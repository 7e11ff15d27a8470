"""Messages that are right: starts, and what is asked of the requests that they start."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from headrace_proto.v1 import engine_service_pb2
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.v1.generation_pb2 import GenerationConfig, Lease, ResponseFormat, TokenIds
from headrace_proto.v1.session_pb2 import Ack, Attach, Ping, SessionOptions, SessionRequest

_CONFIG = GenerationConfig(
    temperature=0.8,
    top_k=5,
    top_p=0.9,
    min_p=0.01,
    seed=7,
    max_new_tokens=3,
    min_new_tokens=1,
    n=2,
    stop_words=["zz"],
    bad_words=["q"],
    repetition_penalty=1.1,
    logprobs=True,
    top_logprobs=2,
    logit_bias={5: 1.5},
    response_format=ResponseFormat(regex="[a-z ]{1,40}"),
    lease=Lease(running=Duration(seconds=1), ended=Duration(seconds=1)),
)
_PROMPT = TokenIds(ids=[3, 4, 5, 6])
_NEWEST = 64
"""Requests that are asked for: the leases of older ones have mostly expired."""

STARTS: Mapping[str, Message] = {
    "StartRequest": wire.StartRequestRequest(model_name="tiny", token_ids=_PROMPT, config=_CONFIG),
    "Generate": wire.GenerateRequest(model_name="tiny", token_ids=_PROMPT, config=_CONFIG),
    "Embed": wire.EmbedRequest(model_name="tiny", inputs=[wire.EmbedInput(token_ids=_PROMPT)]),
    "Tokenize": engine_service_pb2.TokenizeRequest(model_name="tiny", text="Once upon"),
    "Detokenize": engine_service_pb2.DetokenizeRequest(model_name="tiny", token_ids=[3, 4, 5]),
}
"""By method, messages about no request: what they start is released by its lease."""

ASKING = ("StopRequest", "ReleaseRequest", "SyncRequest", "GetRequest", "GeneratedElements", "Session")
"""Methods that take handles."""


class RightMessages:
    """Makes messages about the requests of some owners, some of which have been stopped or released meanwhile.

    Args:
        random_: chooses.

    Attributes:
        handles: of these requests, and others that are nearly theirs: of another run of the engine, of another engine,
            longer, shorter, and in other letters. Always the same list.
    """

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        self._known: deque[tuple[str, str]] = deque(maxlen=_NEWEST)
        self.handles = ["e1/none", "e1/0123456789abcdef/" + "0" * 32]

    def started(self, handle: str, owner: str) -> None:
        """Note a request."""
        self._known.append((handle, owner))
        found: list[str] = []
        for known, _ in self._known:
            engine, instance, name = known.split("/")
            found += [known, f"{engine}/{instance[::-1]}/{name}", f"e2/{instance}/{name}"]
            found += [known + "0", known[:-1], known.upper(), f"{instance}/{name}"]
        self.handles[:] = found

    def message(self, method: str, owner: str = "") -> Message | None:
        """Return a message for a method; None: there is none that is right.

        Args:
            owner: of what it starts.
        """
        if method in STARTS:
            made = type(STARTS[method])()
            made.CopyFrom(STARTS[method])
            if method == "StartRequest":
                made.owner = owner  # type: ignore[attr-defined]
            return made
        if method not in ASKING or not self._known:
            return None
        handle, of = self._random.choice(self._known)
        return self._asking(method, handle, of)

    def session(self) -> list[Message]:
        """Return the messages of a session that reads two requests, one after the other."""
        (first, owner), (second, other) = self._random.choice(self._known), self._random.choice(self._known)
        attach = Attach(channel=2, handle=second, index=1, owner=other)
        more = SessionRequest(attach=[attach], detach=[1], acks=[Ack(channel=1, position=2)], ping=Ping(number=2))
        return [self._asking("Session", first, owner), more]

    def _asking(self, method: str, handle: str, owner: str) -> Message:
        about = {"handle": handle, "owner": owner}
        if method == "Session":
            attach = Attach(channel=1, window=2, **about)
            return SessionRequest(options=SessionOptions(client="any"), attach=[attach], ping=Ping(number=1))
        if method == "GetRequest":
            return wire.GetRequestRequest(wait=Duration(nanos=1_000_000), index=1, from_position=1, **about)
        if method == "GeneratedElements":
            return wire.GeneratedElementsRequest(index=1, from_position=1, **about)
        kind: type[Message] = getattr(wire, f"{method}Request")
        return kind(**about)
