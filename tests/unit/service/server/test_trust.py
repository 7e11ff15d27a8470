"""Who may call an engine, and who may name owners."""

from __future__ import annotations

from contextvars import copy_context
from typing import Any

import pytest
from headrace_engine.errors import PermissionDenied, Unauthenticated
from headrace_engine.service.convert.callers import check_owner, note_caller
from headrace_engine.service.trust import Trust
from headrace_proto.server.interceptor import Method
from headrace_proto.server.secrets import SECRET_KEY

SECRET = "s" * 40
NEAR = [
    "ipv4:127.0.0.1:5000",
    "ipv4:127.8.9.1:5",
    "ipv6:%5B::1%5D:5000",
    "ipv6:[::ffff:127.0.0.1]:5",
    "unix:",
    "unix:/a",
]
FAR = [
    "ipv4:192.0.2.1:5000",
    "ipv6:[2001:db8::1]:5",
    "ipv6:[::ffff:192.0.2.1]:5",
    "",
    "ipv4:",
    "ipv4:localhost:1",
    "x",
]


class Call:
    """What a server knows of a call before its message."""

    def __init__(self, peer: str = FAR[0], **metadata: Any) -> None:
        self._peer = peer
        self._metadata = tuple((name.replace("_", "-"), value) for name, value in metadata.items())

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._metadata


def method(path: str = "/headrace.v1.RequestService/StartRequest") -> Method:
    class Handler:
        unary_unary = print
        unary_stream = stream_unary = stream_stream = None
        request_streaming = response_streaming = False
        request_deserializer = None

    return Method.of(path, Handler)


@pytest.mark.parametrize("peer", NEAR)
def test_peers_on_this_machine_may_name_owners(peer: str) -> None:
    assert Trust().check(method(), Call(peer))


@pytest.mark.parametrize("peer", FAR)
def test_others_may_call_but_name_no_owners(peer: str) -> None:
    assert not Trust().check(method(), Call(peer))
    assert Trust(mutual_tls=True).check(method(), Call(peer))


@pytest.mark.parametrize("peer", [*NEAR, *FAR])
def test_with_secrets_every_peer_needs_one(peer: str) -> None:
    trust = Trust(["o" * 40, SECRET], mutual_tls=True)
    assert SECRET_KEY == "headrace-secret"
    assert trust.check(method(), Call(peer, headrace_secret=SECRET))
    for sent in (SECRET[:-1], SECRET.upper(), "", b"bytes"):
        with pytest.raises(Unauthenticated, match="is not one of this engine's"):
            trust.check(method(), Call(peer, headrace_secret=sent))
    with pytest.raises(Unauthenticated, match="metadata headrace-secret is missing"):
        trust.check(method(), Call(peer))
    with pytest.raises(Unauthenticated):
        trust.check(method("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"), Call(peer))
    assert not trust.check(method("/grpc.health.v1.Health/Check"), Call(peer))


def test_an_owner_named_by_another_is_refused() -> None:
    def refuse() -> None:
        note_caller(Call(), trusted=False)
        check_owner("")
        with pytest.raises(PermissionDenied, match=r"attach\[0\].owner is set by a peer that is not trusted"):
            check_owner("team", "attach[0].owner")
        note_caller(Call(), trusted=True)
        check_owner("team")

    copy_context().run(refuse)
