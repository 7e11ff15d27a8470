"""Budget of an owner's requests on a model: bytes of their logs and payloads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.token_details import NOTHING, DetailOptions
from headrace_engine.engine.results.usage import UsageCounts
from headrace_engine.errors import InvalidArgument, ResourceExhausted, quoted

TOKEN_BYTES = 128
"""Bytes reserved for a token: 28 for numbers (id, checksum, end and address of its text, time, logprob),
and 100 for its text: a Python string of 50 ASCII characters. Few tokens have a longer text."""

SEQUENCE_BYTES = 2048
"""Bytes of a log without tokens: statistics, end record, readers' positions."""

Tenant = tuple[str, str]
"""Owner and model."""


def log_bytes(tokens: int, options: DetailOptions = NOTHING) -> int:
    """Return the maximum bytes of a log of `tokens` tokens with the requested details."""
    return SEQUENCE_BYTES + tokens * (TOKEN_BYTES + options.kept_bytes)


@dataclass(frozen=True, slots=True)
class Need:
    """The maximum size of a request's logs and payload.

    Attributes:
        tokens: number of tokens of the longest log.
        count: number of logs.
        options: the details that are kept of each token.
        payload: bytes of the payload: config, prompt, stops, rules.
        payload_ended: bytes of the payload that are retained after the request's end.
        payload_field: field with the largest part of the payload.
        prompt_bytes: bytes of the prompt logprobs; 0: there are none.
        prompt_tops: number of top ids per token of the prompt logprobs.
        count_field: field of the config that sets the number of logs.
    """

    tokens: int
    count: int = 1
    options: DetailOptions = NOTHING
    prompt_bytes: int = 0
    prompt_tops: int = 0
    count_field: str = "n"
    payload: int = 0
    payload_ended: int = 0
    payload_field: str = "config"

    @property
    def bytes(self) -> int:
        """Maximum bytes in total."""
        return self.count * log_bytes(self.tokens, self.options) + self.prompt_bytes + self.payload

    @property
    def text(self) -> str:
        """Description for messages."""
        return f"{self.tokens} tokens" if self.count == 1 else f"{self.count} sequences of {self.tokens} tokens"

    @property
    def extras(self) -> list[tuple[int, str, object]]:
        """Optional parts, largest first: bytes, field of the config, value."""
        tokens, options = self.count * self.tokens, self.options
        found: list[tuple[int, str, object]] = [
            (self.prompt_bytes, "prompt_logprobs", self.prompt_tops),
            (tokens * options.top_bytes, "top_logprobs", options.top_count),
            (tokens * options.vector_bytes, "enable_tensors_from_model_inference", True),
        ]
        return sorted((extra for extra in found if extra[0]), key=lambda extra: extra[0], reverse=True)

    def most(self, limit: int) -> int:
        """Return the maximum number of tokens per log within a limit in bytes."""
        left = (limit - replace(self, tokens=0).bytes) // self.count
        return max(0, left // (log_bytes(1, self.options) - SEQUENCE_BYTES))

    def refusal(self, limit: int) -> InvalidArgument:
        """Return an error that names the field to change to stay within a limit in bytes.

        That is, in this order: a payload too large by itself; the largest optional part, if the request fits without
        these or no token fits with them; the number of tokens; the number of logs.
        """
        text = f"may need {self.bytes} bytes for {self.text}, and max_result_bytes is {limit}"
        if self.payload and self.payload > limit - Need(1, self.count).bytes:
            why = f"takes most of {self.payload} bytes that the request brings: it {text}; send less of it"
            return InvalidArgument.field(self.payload_field, why)
        most, plain = self.most(limit), Need(self.tokens, self.count)
        if self.extras and (plain.bytes <= limit or not most):
            size, name, value = self.extras[0]
            fewer = f", or ask for at most {most} tokens" if most else ""
            text = f"= {value} takes {size} bytes: the request {text}; leave it out{fewer}"
            return InvalidArgument.field(f"config.{name}", text)
        if most:
            return InvalidArgument.field("config.max_new_tokens", f"{text}; ask for at most {most} tokens")
        fitting = limit // log_bytes(1)
        if not fitting:
            text = f"{text}, which is too little for one token: install the model with more"
            return InvalidArgument.field("config.max_new_tokens", text)
        text = f"= {self.count}: the request {text}; ask for at most {fitting}, of one token each"
        return InvalidArgument.field(f"config.{self.count_field}", text)


class Reservation:
    """Bytes reserved for a log or a payload. Its owner gives them back, once, when that is freed."""

    def __init__(self, budget: ResultBudget, tenant: Tenant, size: int, options: DetailOptions = NOTHING) -> None:
        self._budget = budget
        self._options = options
        self._tenant = tenant
        self._size = 0
        self._resize(size)

    def settle(self, tokens: int) -> None:
        """Free the unused part once the sequence has ended with `tokens` tokens."""
        self.shrink(log_bytes(tokens, self._options))

    def shrink(self, size: int) -> None:
        """Reduce the reservation to at most `size` bytes."""
        self._resize(min(self._size, size))

    def give_back(self) -> None:
        """Give all of it back when the log is freed. Idempotent."""
        self._resize(0)

    def _resize(self, size: int) -> None:
        self._budget.change(self._tenant, size - self._size)
        self._size = size


class PayloadReservation:
    """Bytes reserved for a request's payload: most are freed at the end of its last sequence. Until then the request
    counts as one in progress.

    Args:
        running: number of sequences that have not ended.
        ended_bytes: bytes that stay reserved until the request is released.
        owner: the owner of the request, in whose counts it is.
    """

    def __init__(
        self, reservation: Reservation, running: int, ended_bytes: int, counts: UsageCounts, owner: str
    ) -> None:
        self._reservation, self._running, self._ended_bytes = reservation, running, ended_bytes
        self._counts, self._owner = counts, owner
        counts.add_request(owner, 1)

    def sequence_begins(self, log: ResultLog) -> None:
        """Count the tokens of a sequence."""
        with self._counts.changing(self._owner) as counted:
            counted.begin(log)

    def sequence_ended(self, log: ResultLog) -> None:
        """Count an ended sequence."""
        with self._counts.changing(self._owner) as counted:
            counted.end(log)
        self._running -= 1
        if not self._running:
            self._counts.add_request(self._owner, -1)
            self._reservation.shrink(self._ended_bytes)

    def give_back(self) -> None:
        """Give all of it back when the request is released. Idempotent."""
        # Released before its end: it is not in progress any more, and an end that still comes gives nothing back.
        if self._running > 0:
            self._running = 0
            self._counts.add_request(self._owner, -1)
        self._reservation.give_back()


@dataclass(frozen=True, slots=True)
class Reservations:
    """The reservations of a request: for each log, for the prompt logprobs, and for the payload."""

    logs: list[Reservation]
    prompt: Reservation
    payload: PayloadReservation

    def give_back(self) -> None:
        """Give all of it back if the request is not accepted after all."""
        for reservation in (*self.logs, self.prompt):
            reservation.give_back()
        self.payload.give_back()


class ResultBudget:
    """Reserved bytes by owner and model.

    Attributes:
        counts: what each owner uses.
    """

    def __init__(self) -> None:
        self.counts = UsageCounts()
        self._taken: defaultdict[Tenant, int] = defaultdict(int)

    def taken(self, tenant: Tenant) -> int:
        """Return the number of reserved bytes."""
        return self._taken.get(tenant, 0)

    def reserve(self, tenant: Tenant, need: Need, limit: int, retry_after: Callable[[], float]) -> Reservations:
        """Reserve bytes for all logs of a request and for its payload, or none at all.

        Args:
            limit: maximum bytes of the owner's requests on the model.
            retry_after: returns the seconds until an end or a release should free bytes.

        Raises:
            InvalidArgument: the request alone exceeds the limit, so that waiting cannot help.
            ResourceExhausted: RESULTS_FULL.
        """
        size, taken = need.bytes, self.taken(tenant)
        if size > limit:
            raise need.refusal(limit)
        if taken + size > limit:
            delay = retry_after()
            raise ResourceExhausted(
                f"the results of this owner on model {quoted(tenant[1])} may take {limit} bytes (max_result_bytes), "
                f"{taken} are taken and this request may need {size} ({need.text}). Release what was read, ask "
                f"for fewer tokens, or try again in {delay:.1f} s",
                reason="RESULTS_FULL",
                retry_after=delay,
            )
        # From here on the bytes belong to the logs, the prompt's log and the request, each of which gives its own back.
        log_size = log_bytes(need.tokens, need.options)
        logs = [Reservation(self, tenant, log_size, need.options) for _ in range(need.count)]
        held = Reservation(self, tenant, need.payload)
        payload = PayloadReservation(held, need.count, need.payload_ended, self.counts, tenant[0])
        return Reservations(logs, Reservation(self, tenant, need.prompt_bytes), payload)

    def change(self, tenant: Tenant, size: int) -> None:
        """Add to the reserved bytes; negative sizes free them."""
        self._taken[tenant] += size
        if size:
            with self.counts.changing(tenant[0]) as counted:
                counted.bytes += size
        if not self._taken[tenant]:
            del self._taken[tenant]
