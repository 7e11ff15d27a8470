"""Detecting connections that are impossible: only one side uses TLS, or the certificate is not accepted.

gRPC reports all of these as UNAVAILABLE with a text, and of several addresses of a name only the last one.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from contextlib import suppress
from typing import Any, cast

import grpc
from headrace_proto.pure.tls import any_certificate

_PROBE_SECONDS = 2.0
"""Seconds to probe each address of a server; one that takes longer is reported with gRPC's message."""

_LASTS = 1.0
"""Seconds for which a result is reused: many calls fail with one connection."""

_UNREACHED = "failed to connect to all addresses"
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

_SIGNS = (
    ("Hostname Verification Check failed", "its certificate is not valid for {host}: connect by a name that it lists, "
     "or give the server a certificate for {host}"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is from an unknown authority, or has expired: pass the "
     "authority's root certificate (credentials=grpc.ssl_channel_credentials(root_certificates))"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS: leave out credentials"),
)  # fmt: skip
_SPEAKS_TLS = "it speaks TLS: pass credentials (credentials=grpc.ssl_channel_credentials())"


class Mismatch:
    """Finds out whether a server that cannot be reached never can be, and why.

    Args:
        target: "host:port", or another target of gRPC.
        credentials: credentials of the connection; None: no encryption.
    """

    def __init__(self, target: str, credentials: grpc.ChannelCredentials | None) -> None:
        self._target = target
        self._credentials = credentials
        self._lock = threading.Lock()
        self._found = ""
        self._until = 0.0

    def reason(self, details: str) -> str:
        """Return what is wrong and what to do; "" if a connection may succeed later.

        May probe the server for some seconds.

        Args:
            details: gRPC's text of the failure.
        """
        host = self._target.rpartition(":")[0]
        if not host or host.startswith("unix"):
            return ""
        known = _advice(details, host)
        if not is_ambiguous(details) or (known and _is_address(host)):
            return known
        with self._lock:
            if time.monotonic() >= self._until:
                self._found = self._probe(details) if _is_address(host) else self._probe_all(host, known)
                self._until = time.monotonic() + _LASTS
            return self._found

    def _probe(self, details: str) -> str:
        """Return what is wrong with the only address."""
        ambiguous = self._credentials is None and "Socket closed" in details
        return _SPEAKS_TLS if ambiguous and speaks_tls(self._target) else ""

    def _probe_all(self, host: str, known: str) -> str:
        """Return what is wrong with the addresses of a name if none of them works.

        Args:
            host: the name.
            known: what is wrong with the last one, the only one that gRPC reports.
        """
        failures = []
        for address in _addresses(self._target):
            failure = self._probe_address(address, host)
            if failure is None:
                return ""  # gRPC will come to this address, which works.
            failures.append(failure)
        if self._credentials is None:
            return _SPEAKS_TLS if speaks_tls(self._target) else ""
        return next(filter(None, (_advice(failure, host) for failure in failures)), known)

    def _probe_address(self, address: str, host: str) -> str | None:
        """Return gRPC's text of the failure to reach one address; None if it answers."""
        with self._channel(address, host) as channel:
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            try:
                check(b"", timeout=_PROBE_SECONDS)
            except grpc.RpcError as error:
                call = cast(grpc.Call, error)
                return (call.details() or "") if call.code() in _NO_ANSWER else None
        return None

    def _channel(self, address: str, host: str) -> grpc.Channel:
        options = [("grpc.enable_retries", 0)]
        if self._credentials is None:
            return grpc.insecure_channel(address, options)
        return grpc.secure_channel(address, self._credentials, [*options, ("grpc.ssl_target_name_override", host)])


def is_ambiguous(details: str) -> bool:
    """Return whether gRPC's text leaves open why a server was not reached, so that a probe helps."""
    return _UNREACHED in details


def speaks_tls(target: str) -> bool:
    """Return whether a server at "host:port" completes a TLS handshake at one of its addresses."""
    context = any_certificate()
    for family, address in _resolve(target):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as plain:
            plain.settimeout(_PROBE_SECONDS)
            plain.connect(address)
            with context.wrap_socket(plain, server_hostname=target.rpartition(":")[0].strip("[]")):
                return True
    return False


def _advice(details: str, host: str) -> str:
    return next((advice.format(host=host) for sign, advice in _SIGNS if sign in details), "")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _addresses(target: str) -> list[str]:
    """Return each address of a name as a gRPC target."""
    kinds = {socket.AF_INET: "ipv4:{}:{}", socket.AF_INET6: "ipv6:[{}]:{}"}
    return [kinds[family].format(address[0], address[1]) for family, address in _resolve(target)]


def _resolve(target: str) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    host, _, port = target.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return []
    inet = (socket.AF_INET, socket.AF_INET6)
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found if family in inet]
