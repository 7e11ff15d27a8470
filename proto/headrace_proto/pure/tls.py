"""Finding out whether a server speaks TLS."""

from __future__ import annotations

import ssl


def any_certificate() -> ssl.SSLContext:
    """A context that greets a server only to see whether it speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context
