"""Detection of servers that speak TLS."""

from __future__ import annotations

import ssl


def any_certificate() -> ssl.SSLContext:
    """Return a context that accepts any certificate, only to detect whether a server speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context
