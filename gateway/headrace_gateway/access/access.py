"""Decides which calls a caller may make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace_gateway import status
from headrace_gateway.access import callers, refusals, several
from headrace_gateway.access.api_keys import LIMITS, ApiKey
from headrace_gateway.access.callers import ANYONE, Caller
from headrace_gateway.access.keyring import Keyring
from headrace_gateway.access.rates import Rates
from headrace_gateway.access.uses import OwnerUses, Use

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

OWNER_LIMITS = "headrace-owner-limits"
"""Metadata with the limits of a start's owner, for engines."""

_OF_ENGINES = (("concurrent_requests", "requests"), ("waiting_requests", "waiting"), ("kept_bytes", "bytes"))
"""Limits that engines keep, and what of a Use they limit."""

_SCHEME = "bearer "

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """Use by one owner, and its limits by name."""

    owner: str
    use: Use
    limits: Mapping[str, int]


class Access:
    """Checks callers.

    Args:
        keys: the keys; None: the gateway has none, and everyone may make every call.

    Attributes:
        uses: what owners use of the engines.
    """

    def __init__(self, keys: Keyring | None = None) -> None:
        self._keys = keys
        self._rates, self._tokens = Rates(), Rates()
        self.uses = OwnerUses(self._charge)

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
            self._check_key(caller.key, method, request)
        caller.sign(request)

    @contextmanager
    def starting(self, engine: str) -> Iterator[Metadata]:
        """Count a start of the current caller on an engine. Give the metadata by which that keeps the owner's limits.

        Engines count what an owner has, so that starts of several gateways share its limits.
        """
        several.started()
        key = callers.current().key
        if key is None or all(getattr(key, name) is None for name, _ in _OF_ENGINES):
            yield ()
            return
        elsewhere, expected = self.uses.total(key.owner, without=engine), self.uses.expected[key.owner]
        limits = [
            f"{name}={most}:{getattr(elsewhere, use) + (0 if use == 'bytes' else expected)}"
            for name, use in _OF_ENGINES
            if (most := getattr(key, name)) is not None
        ]
        with self.uses.placing(engine, key.owner):
            yield ((OWNER_LIMITS, " ".join((f"key={key.name}", *limits))),)

    @contextmanager
    def starting_several(self, count: int) -> Iterator[None]:
        """Have the current caller start several requests, one after another, within a block.

        Those of a minute are counted now. Each start says to engines how many follow, so that they refuse the first one
        where there is not room for all.

        Raises:
            CallError: RATE_LIMITED.
        """
        key = callers.current().key
        if key is None:
            yield
            return
        self._check_rates(key, count)
        with several.starting(self.uses.expected, key.owner, count) as left:
            try:
                yield
            finally:
                if key.requests_per_minute is not None:  # Where none came to start, the call itself counts as one.
                    self._rates.charge(key.owner, key.requests_per_minute, -min(left.unchecked, count - 1))

    def standings(self) -> list[Standing]:
        """Return what each owner of a key uses, and its limits."""
        owners = {} if self._keys is None else {key.owner: key for key in self._keys.all}
        return [Standing(owner, self.uses.total(owner), self._limits(key)) for owner, key in owners.items()]

    def _limits(self, key: ApiKey) -> dict[str, int]:
        return {name: most for name in LIMITS if (most := getattr(key, name)) is not None}

    def _charge(self, owner: str, tokens: int) -> None:
        key = None if self._keys is None else self._keys.of_owner(owner)
        if key is not None and key.tokens_per_minute is not None:
            self._tokens.charge(owner, key.tokens_per_minute, tokens)

    def _check_key(self, key: ApiKey, method: str, request: Any) -> None:
        model_name = _model_of(request)
        if method in ADMIN and not key.admin:
            raise refusals.forbidden(f'API key "{key.name}" may not call {method}: it is not an admin key')
        if model_name and not key.allows(model_name):
            allowed = ", ".join(map(status.shorten, key.models))
            raise refusals.forbidden(
                f'API key "{key.name}" may not use model "{status.shorten(model_name)}"; it may use: {allowed}'
            )
        if method in STARTS and not several.checked(starts=not getattr(request, "validate_only", False)):
            self._check_rates(key)

    def _check_rates(self, key: ApiKey, count: int = 1) -> None:
        """Refuse starts of an owner that has used up a minute's tokens or requests."""
        if (most := key.tokens_per_minute) is not None and (wait := self._tokens.wait(key.owner, most)):
            raise refusals.rate_limited(f'API key "{key.name}" has used up its {most} tokens a minute', wait)
        if (most := key.requests_per_minute) is not None and (wait := self._rates.take(key.owner, most, count)):
            raise refusals.rate_limited(f'API key "{key.name}" has used up its {most} requests a minute', wait)


def _model_of(request: Any) -> str:
    """Return the name of the model that a request is about; "": of none, or of all."""
    config = getattr(request, "config", None)
    return getattr(request, "model_name", "") or getattr(config, "model_name", "")
