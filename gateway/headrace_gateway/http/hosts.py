"""The names under which a gateway on loopback answers without API keys.

A site can let its own name lead to 127.0.0.1: its visitors' browsers then take what listens there for a part of the
site, and its pages may read it. They send the site's name as Host; whoever means the machine sends an address or a
name of it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from headrace_proto.pure.addresses import is_local

from headrace_gateway.http.failures import Failure

_SHOWN = 64


def check_host(scope: Mapping[str, Any], host: str) -> None:
    """Refuse a request that came over loopback under the name of another machine.

    Args:
        scope: of the ASGI request.
        host: its Host header; "": none, which no browser sends.

    Raises:
        Failure: the name is neither an address nor one of this machine.
    """
    here, _ = scope.get("server") or ("", 0)
    if not host or not is_local(f"{here}:0"):
        return
    name = (host if host.endswith("]") else host.rpartition(":")[0] or host).lower()
    if not (is_local(f"{name}:0") or _is_address(name) or name == socket.gethostname().lower()):
        text = (
            f'the request is for host "{name[:_SHOWN]}", and without API keys this gateway answers on loopback only to'
        )
        text += " requests for an address or a name of this machine: let a proxy send such a Host header, or set --keys"
        raise Failure(HTTPStatus.MISDIRECTED_REQUEST, text, "unknown_host")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
