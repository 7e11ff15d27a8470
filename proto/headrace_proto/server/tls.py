"""TLS of servers: certificates from files, read again when the files change."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc

from headrace_proto.server.logs import logger

log = logger(__name__)

T = TypeVar("T")

Stamp = tuple[int, int, int, int]


class CertificateError(ValueError):
    """Certificate files that cannot be used; the text is one line that names the file and why."""


@dataclass
class Certificates:
    """The certificate of a server, and whom it lets connect.

    Attributes:
        certificate: PEM file of the certificate, followed by those of its authorities.
        private_key: PEM file of its private key, without a password.
        client_authorities: PEM file of authorities; clients must present a certificate of one of them. None: no client
            needs a certificate.
    """

    certificate: Path
    private_key: Path
    client_authorities: Path | None = None
    _stamp: tuple[Stamp, ...] = field(default=(), init=False, repr=False)

    @property
    def _files(self) -> tuple[Path, ...]:
        files = (self.certificate, self.private_key, self.client_authorities)
        return tuple(file for file in files if file is not None)

    def check(self) -> None:
        """Read the files as a TLS library would.

        Raises:
            CertificateError: one cannot be read, is no PEM, or the key is not that of the certificate.
        """
        check_pair(self.certificate, self.private_key)
        if self.client_authorities is not None:
            check_authorities(self.client_authorities)

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials of a gRPC server. Each new connection gets the certificate that the files then hold.

        Files that have become unusable are logged, and the last good ones stay in use.

        Raises:
            CertificateError: as `check`.
        """
        self._stamp = self._seen()
        self.check()
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            cast(Any, self._changed),
            require_client_authentication=self.client_authorities is not None,
        )

    def contexts(self) -> Callable[[], ssl.SSLContext]:
        """Return what gives the context of a new connection to a server of another library, with the same reloading.

        Changed files make a new context, which resumes no session of one before: a session that began with a client's
        certificate ends with the trust in its authority.

        Raises:
            CertificateError: as `check`.
        """
        stamp = self._seen()
        self.check()
        current = self._context()

        def refreshed() -> ssl.SSLContext:
            nonlocal current, stamp
            if (seen := self._seen()) != stamp:
                stamp = seen
                current = self._reloaded(self._context) or current
            return current

        return refreshed

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.private_key, password=_no_password)
        if self.client_authorities is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.client_authorities)
        return context

    def _reloaded(self, make: Callable[[], T]) -> T | None:
        """Return what is made of changed files; None, with a log line, if they cannot be used."""
        try:
            self.check()
            made = make()
        except (CertificateError, OSError) as error:
            log.error("certificate_not_reloaded", problem=str(error))
            return None
        log.info("certificate_reloaded", certificate=str(self.certificate))
        return made

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration; None if the files are as they were. Called by gRPC for each connection."""
        stamp = self._seen()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        return self._reloaded(self._configuration)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self.private_key.read_bytes(), self.certificate.read_bytes())
        authorities = None if self.client_authorities is None else self.client_authorities.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)

    def _seen(self) -> tuple[Stamp, ...]:
        return tuple(map(file_stamp, self._files))


def check_pair(certificate: Path, private_key: Path) -> None:
    """Read a certificate and its private key as a TLS library would.

    Raises:
        CertificateError: one cannot be read, is no PEM, or the key is not that of the certificate.
    """
    _refuse_absent(certificate, private_key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key, password=_no_password)
    except (OSError, ValueError) as error:
        raise CertificateError(f"{certificate} with {private_key}: {_reason(error)}") from None


def check_authorities(file: Path) -> None:
    """Read certificates of authorities as a TLS library would.

    Raises:
        CertificateError: the file cannot be read, or has no certificate.
    """
    _refuse_absent(file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
    except (OSError, ValueError) as error:
        raise CertificateError(f"{file}: {_reason(error)}") from None


def _refuse_absent(*files: Path) -> None:
    for file in files:
        if not file.is_file():
            raise CertificateError(f"{file}: no such file")


def file_stamp(file: Path) -> Stamp:
    """Return what changes whenever a file is written or replaced, whatever time it is given; zeros if there is none."""
    try:
        found = file.stat()
    except OSError:
        return (0, 0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


def add_tls_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a server's TLS."""
    group = parser.add_argument_group("TLS", "The files are read again when they change.")
    group.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="PEM file of the server's certificate; default: no encryption"
    )
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM file of its private key")
    group.add_argument(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="PEM file of authorities; only clients with a certificate of one of them may connect",
    )


def certificates_of(given: argparse.Namespace) -> Certificates | None:
    """Return the certificates that the flags name; None without TLS.

    Raises:
        ValueError: a flag is missing, or a file cannot be used.
    """
    if given.tls_cert is None and given.tls_key is None:
        if given.tls_client_ca is not None:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key: there is no TLS without a certificate")
        return None
    if given.tls_cert is None or given.tls_key is None:
        missing = "--tls-key" if given.tls_key is None else "--tls-cert"
        raise ValueError(f"{missing} is missing: TLS needs both --tls-cert and --tls-key")
    certificates = Certificates(given.tls_cert, given.tls_key, given.tls_client_ca)
    certificates.check()
    return certificates


def _no_password() -> str:
    raise ValueError("the private key is encrypted; store it without a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        known = {
            "KEY_VALUES_MISMATCH": "the private key is not that of the certificate",
            "NO_START_LINE": "is no PEM file",
            "NO_CERTIFICATE_OR_CRL_FOUND": "has no certificate",
        }
        return known.get(error.reason or "", error.reason or str(error))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
