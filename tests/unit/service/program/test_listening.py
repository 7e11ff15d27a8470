"""Addresses to listen on: taken as written, or refused with the reason."""

from __future__ import annotations

import socket

import pytest
from headrace_engine.service.server import EngineServer
from headrace_proto.pure.addresses import Address
from headrace_proto.server.listening import ListenError, check_free, parse_address
from support.scripted.engine import ScriptedEngine


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:7071", Address("127.0.0.1", 7071)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_an_address_is_host_and_port(text, expected):
    assert parse_address(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", "7071", ":7071", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:http", "h:-1"]
)
def test_bc194_an_unreadable_address_is_quoted_as_written(text):
    """Left to gRPC, 127.0.0.1:99999 would be port 34463."""
    with pytest.raises(ListenError, match="HOST:PORT") as caught:
        parse_address(text)
    assert f'"{text}"' in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_bc194_a_port_that_something_listens_on_is_refused(host):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on {host}:{port}: Address already in use"):
            check_free(Address(host, port))


async def test_bc194_two_servers_do_not_share_a_port():
    first, second = EngineServer(ScriptedEngine()), EngineServer(ScriptedEngine())
    address = first.listen("127.0.0.1:0")
    await first.start()
    with pytest.raises(ListenError, match=address):
        second.listen(address)
    await first.stop(None)


async def test_bc194_port_0_is_answered_with_the_real_port():
    server = EngineServer(ScriptedEngine())
    address = parse_address(server.listen("127.0.0.1:0"))
    await server.start()
    assert address.port > 0
    socket.create_connection((address.host, address.port)).close()
    await server.stop(None)


def test_a_host_that_does_not_exist_is_refused():
    with pytest.raises(ListenError, match=r"cannot listen on no-such-host.invalid:7071: "):
        check_free(Address("no-such-host.invalid", 7071))


def test_an_address_of_another_host_is_refused():
    with pytest.raises(ListenError, match="Cannot assign requested address"):
        check_free(Address("192.0.2.1", 7071))
