"""Decides which calls a caller may make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_gateway import status
from headrace_gateway.access import refusals
from headrace_gateway.access.api_keys import ApiKey
from headrace_gateway.access.callers import ANYONE, Caller
from headrace_gateway.access.keyring import Keyring
from headrace_gateway.access.rates import Rates

ADMIN = frozenset(
    {
        "InstallModel",
        "StartModel",
        "StopModel",
        "ReleaseModel",
        "InspectModel",
        "SerializeModel",
        "FreeSerializedModel",
        "LoadAdapter",
        "UnloadAdapter",
    }
)
"""Calls that change which models there are, or read the engines' files: for keys with `admin` alone."""

STARTS = frozenset({"StartRequest", "Generate", "Embed"})
"""Calls that start requests."""

_SCHEME = "bearer "


class Access:
    """Checks callers.

    Args:
        keys: the keys; None: the gateway has none, and everyone may make every call.
    """

    def __init__(self, keys: Keyring | None = None) -> None:
        self._keys = keys
        self._rates = Rates()

    @property
    def has_keys(self) -> bool:
        """True if callers need an API key."""
        return self._keys is not None

    def caller(self, headers: Mapping[str, Any]) -> Caller:
        """Return who calls.

        Args:
            headers: of the call, with names in lower case.

        Raises:
            CallError: BAD_API_KEY; there is no key, or it is not one of the gateway's.
        """
        if self._keys is None:
            return ANYONE
        sent = headers.get("authorization")
        if not isinstance(sent, str) or not sent[: len(_SCHEME)].lower() == _SCHEME:
            raise refusals.bad_api_key("no API key was sent: send it as authorization: Bearer KEY")
        key = self._keys.find(sent[len(_SCHEME) :].strip())
        if key is None:
            raise refusals.bad_api_key("the API key is not valid here")
        return Caller(key)

    def valid(self, caller: Caller) -> bool:
        """True unless a caller's key has been taken out of the file."""
        return self._keys is None or caller.key is None or self._keys.knows(caller.key)

    def check(self, caller: Caller, method: str, request: Any) -> None:
        """Refuse a call that the caller's key does not allow; sign the request with its owner.

        Args:
            caller: who calls.
            method: name of the RPC.
            request: its message.

        Raises:
            CallError: NOT_ALLOWED, or RATE_LIMITED with RetryInfo.
        """
        if caller.key is not None:
            self._check_key(caller.key, method, getattr(request, "model_name", ""))
        caller.sign(request)

    def _check_key(self, key: ApiKey, method: str, model_name: str) -> None:
        if method in ADMIN and not key.admin:
            raise refusals.forbidden(f'API key "{key.name}" may not call {method}: it is not an admin key')
        if model_name and not key.allows(model_name):
            allowed = ", ".join(map(status.shorten, key.models))
            raise refusals.forbidden(
                f'API key "{key.name}" may not use model "{status.shorten(model_name)}"; it may use: {allowed}'
            )
        if method in STARTS and key.requests_per_minute is not None:
            wait = self._rates.take(key.owner, key.requests_per_minute)
            if wait:
                limit = f"{key.requests_per_minute} requests a minute"
                raise refusals.rate_limited(f'"{key.owner}" has used up its {limit}', wait)
