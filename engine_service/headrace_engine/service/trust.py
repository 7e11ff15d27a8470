"""Whom an engine trusts: peers that may call it at all, and those that may name the owner of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_proto.pure.host_shares import is_loopback
from headrace_proto.server.interceptor import Method
from headrace_proto.server.secrets import SECRET_KEY, digest, is_one_of

from headrace_engine.errors import Unauthenticated


class Trust:
    """Decides by call.

    With secrets, every call needs one of them, except those of the health service. Without, anyone may call, and is
    trusted for owners if it calls from this machine, or over TLS with a certificate of the authorities.

    Args:
        secrets: that gateways send.
        mutual_tls: clients must have a certificate.
    """

    def __init__(self, secrets: Sequence[str] = (), *, mutual_tls: bool = False) -> None:
        self._digests = tuple(map(digest, secrets))
        self._mutual_tls = mutual_tls

    def check(self, method: Method, context: Any) -> bool:
        """Return whether the caller is trusted to name owners.

        Raises:
            Unauthenticated: it may not call at all.
        """
        if not self._digests:
            return self._mutual_tls or is_loopback(context.peer())
        if method.open:
            return False
        sent = dict(context.invocation_metadata() or ()).get(SECRET_KEY)
        if not isinstance(sent, str) or not is_one_of(sent, self._digests):
            what = "is missing" if sent is None else "is not one of this engine's"
            raise Unauthenticated(f"the metadata {SECRET_KEY} {what}: this engine serves its gateways only")
        return True
