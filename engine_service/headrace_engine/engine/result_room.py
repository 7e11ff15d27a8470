"""How much room the logs of one owner may take on one model."""

from __future__ import annotations

from collections import defaultdict

from headrace_engine.errors import InvalidArgument, ResourceExhausted

TOKEN_BYTES = 128
"""Bytes reserved for a token: 28 of numbers (id, checksum, end of its text, place of its text, time, log-probability),
and 100 for its text, which is 50 characters of ASCII as Python keeps them. Few tokens have any longer text."""

TOP_BYTES = 8
"""Bytes of each of a token's most likely ids."""

SEQUENCE_BYTES = 2048
"""Bytes of a log without tokens: statistics, end record, readers' places."""

Tenant = tuple[str, str]
"""Owner and model."""


def log_bytes(tokens: int, top_count: int = 0) -> int:
    """Bytes that a log of so many tokens takes at most, each with so many most likely ids."""
    return SEQUENCE_BYTES + tokens * (TOKEN_BYTES + top_count * TOP_BYTES)


class Reservation:
    """Room that a sequence's log may take, until it is given back."""

    def __init__(self, room: ResultRoom, tenant: Tenant, tokens: int, top_count: int) -> None:
        self._room = room
        self._top_count = top_count
        self._tenant = tenant
        self._size = 0
        self._resize(log_bytes(tokens, top_count))

    def settle(self, tokens: int) -> None:
        """The log has ended with so many tokens: what it did not need is free."""
        self._resize(min(self._size, log_bytes(tokens, self._top_count)))

    def give_back(self) -> None:
        """The log is gone. Giving back twice is once."""
        self._resize(0)

    def _resize(self, size: int) -> None:
        self._room.change(self._tenant, size - self._size)
        self._size = size


class ResultRoom:
    """The room that is taken, by owner and model."""

    def __init__(self) -> None:
        self._taken: defaultdict[Tenant, int] = defaultdict(int)

    def taken(self, tenant: Tenant) -> int:
        """Bytes that are reserved."""
        return self._taken.get(tenant, 0)

    def reserve(self, tenant: Tenant, tokens: int, limit: int, retry_after: float, top_count: int = 0) -> Reservation:
        """Room for one log; as `reserve_all`."""
        return self.reserve_all(1, tenant, tokens, limit, retry_after, top_count)[0]

    def reserve_all(
        self, count: int, tenant: Tenant, tokens: int, limit: int, retry_after: float, top_count: int = 0
    ) -> list[Reservation]:
        """Room for so many logs, or for none.

        Args:
            tokens: of the longest log that the request can have.
            limit: bytes that the owner's logs on the model may take in all.
            retry_after: seconds in which an end may free some.
            top_count: most likely ids that come with each token.

        Raises:
            InvalidArgument: it is more than the limit alone, so that waiting helps nothing.
            ResourceExhausted: RESULTS_FULL.
        """
        size, taken = count * log_bytes(tokens, top_count), self.taken(tenant)
        if size > limit:
            raise _never_fits(count, tokens, top_count, limit)
        if taken + size > limit:
            raise ResourceExhausted(
                f"the results of this owner on model {tenant[1]!r} may take {limit} bytes (max_result_bytes), {taken} "
                f"are taken and this request may need {size} ({_amount(count, tokens)}). Release what was read, ask "
                f"for fewer tokens, or try again in {retry_after:.1f} s",
                reason="RESULTS_FULL",
                retry_after=retry_after,
            )
        return [Reservation(self, tenant, tokens, top_count) for _ in range(count)]

    def change(self, tenant: Tenant, size: int) -> None:
        """Take so many bytes more, or fewer."""
        self._taken[tenant] += size
        if not self._taken[tenant]:
            del self._taken[tenant]


def _amount(count: int, tokens: int) -> str:
    return f"{tokens} tokens" if count == 1 else f"{count} sequences of {tokens} tokens"


def _never_fits(count: int, tokens: int, top_count: int, limit: int) -> InvalidArgument:
    size, token_bytes = count * log_bytes(tokens, top_count), log_bytes(1, top_count) - SEQUENCE_BYTES
    most = max(0, (limit // count - SEQUENCE_BYTES) // token_bytes)
    amount = _amount(count, tokens)
    text = f"may need {size} bytes for {amount}, and max_result_bytes is {limit}; ask for at most {most} tokens"
    return InvalidArgument.field("config.max_new_tokens", text)
