"""Clients and servers that cannot connect for good: told at once, with what to do."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from headrace import AsyncClient, AuthError, Client, HeadraceError, RetryPolicy, UnavailableError
from headrace._transport.mismatch import Mismatch, speaks_tls
from support.logged import logged
from support.servers.certificates import Authority, serve

HERE = "DNS:localhost,IP:127.0.0.1"
ELSEWHERE = "DNS:elsewhere.example"
REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:1: Connection refused"

Serve = Callable[[str | None], int]
Refused = Callable[..., Any]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def served(authority: Authority) -> Iterator[Serve]:
    """Starts servers whose certificates have these names; without names they speak no TLS. Gives their ports."""
    servers = []

    def start(names: str | None) -> int:
        server, port = serve(authority.pair(names) if names else None)
        servers.append(server)
        return port

    yield start
    for server in servers:
        server.stop(None).wait()


def _refused(address: str, **options: Any) -> HeadraceError:
    with Client(address, **options) as client, pytest.raises(HeadraceError) as caught:
        client.server_info()
    return caught.value


async def _refused_async(address: str, **options: Any) -> HeadraceError:
    async with AsyncClient(address, **options) as client:
        with pytest.raises(HeadraceError) as caught:
            await client.server_info()
    return caught.value


async def _both(address: str, **options: Any) -> str:
    """What both kinds of clients are told, without the address; neither tries again."""
    found = [_refused(address, **options), await _refused_async(address, **options)]
    assert {(type(error), error.reason) for error in found} == {(AuthError, "TLS_MISMATCH")}
    one, other = (error.message for error in found)
    assert one == other
    assert one.startswith(f"no connection to {address}: ")
    return one.removeprefix(f"no connection to {address}: ")


async def test_b3_no_tls_to_a_server_that_speaks_it(served: Serve) -> None:
    reported = await _both(f"127.0.0.1:{served(HERE)}")
    assert reported == "it speaks TLS: pass credentials (credentials=grpc.ssl_channel_credentials())"


async def test_b3_tls_to_a_server_that_does_not_speak_it(served: Serve, authority: Authority) -> None:
    credentials = grpc.ssl_channel_credentials(authority.root)
    reported = await _both(f"127.0.0.1:{served(None)}", credentials=credentials)
    assert reported == "it does not speak TLS: leave out credentials"


async def test_b3_an_unknown_authority(served: Serve) -> None:
    reported = await _both(f"127.0.0.1:{served(HERE)}", credentials=grpc.ssl_channel_credentials())
    assert reported.startswith("its certificate is from an unknown authority")
    assert "root_certificates" in reported


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_b3_a_certificate_for_another_name(served: Serve, authority: Authority, host: str) -> None:
    credentials = grpc.ssl_channel_credentials(authority.root)
    reported = await _both(f"{host}:{served(ELSEWHERE)}", credentials=credentials)
    assert reported.startswith(f"its certificate is not valid for {host}")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_b3_what_fits_connects(served: Serve, authority: Authority, host: str) -> None:
    error = _refused(f"{host}:{served(HERE)}", credentials=grpc.ssl_channel_credentials(authority.root))
    assert error.reason == "UNIMPLEMENTED"


def test_b3_of_several_addresses_the_decisive_one_is_reported(served: Serve, authority: Authority) -> None:
    """GRPC tells the last one that it tried, which may be one where nobody listens."""
    credentials = grpc.ssl_channel_credentials(authority.root)
    for names, sign in ((ELSEWHERE, "is not valid for"), (HERE, "")):
        reported = Mismatch(f"localhost:{served(names)}", credentials).reason(REFUSED)
        assert sign in reported
        assert bool(reported) == bool(sign)
    assert "speaks TLS" in Mismatch(f"localhost:{served(HERE)}", None).reason(REFUSED)


@pytest.mark.parametrize(
    ("encrypted", "wrong", "right", "words"),
    [
        (True, ELSEWHERE, HERE, "Hostname Verification Check failed"),
        (True, None, HERE, "WRONG_VERSION_NUMBER"),
        (False, HERE, None, "Socket closed"),
    ],
)
def test_b3_a_name_with_one_address_that_works_is_no_mismatch(
    served: Serve,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    encrypted: bool,
    wrong: str | None,
    right: str | None,
    words: str,
) -> None:
    """Whatever is wrong with the other: gRPC told of the one that it tried last."""
    credentials = grpc.ssl_channel_credentials(authority.root) if encrypted else None
    addresses = [("127.0.0.1", served(names)) for names in (wrong, right)]
    found = [(socket.AF_INET, address) for address in addresses]
    monkeypatch.setattr("headrace._transport.mismatch._resolve", lambda _: found)
    details = f"failed to connect to all addresses; last error: UNKNOWN: {words}"
    assert Mismatch("localhost:7070", credentials).reason(details) == ""
    del found[1]
    assert Mismatch("localhost:7070", credentials).reason(details) != ""


def test_b3_a_second_address_that_fits_is_used(served: Serve) -> None:
    error = _refused(f"127.0.0.1:{served(HERE)},127.0.0.1:{served(None)}", retry=RetryPolicy(first_delay=0.0))
    assert error.reason == "UNIMPLEMENTED"


def test_b3_an_outage_beside_a_mismatch_names_both(served: Serve) -> None:
    with socket.socket() as taken:  # Bound and not listening: nobody answers there.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{served(HERE)},127.0.0.1:{taken.getsockname()[1]}"
        error = _refused(address, retry=RetryPolicy(first_delay=0.0, max_delay=0.0, give_up_after=1.0))
    assert isinstance(error, UnavailableError)
    assert "it speaks TLS" in error.message


def test_b3_a_server_that_closes_connections_is_an_outage() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        listener.close()
        assert not speaks_tls(target)
        assert (
            Mismatch(target, None).reason(f"failed to connect to all addresses; last error: {target}: Socket closed")
            == ""
        )


@pytest.mark.parametrize(
    ("address", "warned"),
    [("10.0.0.1:7070", True), ("gateway:7070", True), ("localhost:7070,gateway:7070", True), ("127.0.0.1:7070", False),
     ("localhost:7070", False), ("[::1]:7070", False), ("unix:/run/headrace", False)],
)  # fmt: skip
def test_b3_a_key_sent_unencrypted_is_warned_about(
    address: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headrace"), Client(address, api_key="secret"):
        pass
    assert ["unencrypted" in text for text in logged(caplog)] == [True] * warned
    assert "secret" not in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "headrace"):
        with Client(address, api_key="secret", credentials=grpc.ssl_channel_credentials()), Client(address):
            pass
    assert logged(caplog) == []
