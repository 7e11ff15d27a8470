"""Connections to engines: with or without TLS, and with the secret that engines ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from headrace_proto.server.secrets import SECRET_KEY, read_secrets
from headrace_proto.server.tls import check_authorities, check_pair


@dataclass(frozen=True)
class EngineSecurity:
    """How the gateway proves itself to engines, and engines to it.

    Attributes:
        authorities: PEM file of the authorities of the engines' certificates; None: connect without TLS.
        certificate: PEM file of the gateway's own certificate; None: it has none.
        private_key: PEM file of its private key.
        secrets: file of secrets, whose first goes with each call; None: none.

    Raises:
        ValueError: files are missing or cannot be used.
    """

    authorities: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    secrets: Path | None = None
    _secret: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            missing = "--engine-key" if self.private_key is None else "--engine-cert"
            raise ValueError(
                f"{missing} is missing: a certificate for engines needs both --engine-cert and --engine-key"
            )
        if self.authorities is None and self.certificate is not None:
            raise ValueError("--engine-cert needs --engine-ca: there is no TLS to engines without it")
        if self.authorities is not None:
            check_authorities(self.authorities)
        if self.certificate is not None and self.private_key is not None:
            check_pair(self.certificate, self.private_key)
        if self.secrets is not None:
            object.__setattr__(self, "_secret", read_secrets(self.secrets)[0])

    @property
    def encrypted(self) -> bool:
        """True if connections use TLS."""
        return self.authorities is not None

    def channel(self, address: str, options: Sequence[tuple[str, Any]]) -> Any:
        """Return a channel to an engine; the files are read now."""
        if self.authorities is None:
            channel = grpc.aio.insecure_channel(address, options=options)
        else:
            pair = (_read(self.private_key), _read(self.certificate))
            credentials = grpc.ssl_channel_credentials(self.authorities.read_bytes(), *pair)
            channel = grpc.aio.secure_channel(address, credentials, options=options)
        return _SecretChannel(channel, self._secret) if self._secret else channel


class _SecretChannel:
    """A channel whose calls carry a secret in their metadata. Interceptors would cost more for each message."""

    def __init__(self, channel: grpc.aio.Channel, secret: str) -> None:
        self._channel = channel
        self._metadata = ((SECRET_KEY, secret),)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._with_secret(self._channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._with_secret(self._channel.unary_stream(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._with_secret(self._channel.stream_stream(*arguments, **options))

    def _with_secret(self, method: Any) -> Any:
        def call(*arguments: Any, metadata: Sequence[tuple[str, str | bytes]] | None = None, **options: Any) -> Any:
            return method(*arguments, metadata=(*(metadata or ()), *self._metadata), **options)

        return call


def _read(file: Path | None) -> bytes | None:
    return None if file is None else file.read_bytes()
