"""Use by owner, for gateways that keep the limits of API keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from headrace_engine.engine.results.usage import Usage

ReadUsage = Callable[[int], tuple[list[Usage], int]]
"""Returns what owners use whose use may have changed since a version (0: all), and the new version."""


class UsageWatch:
    """Changes of what owners use; of each owner only the newest is kept until it is taken. Tokens count from the first
    poll on, so that a gateway charges none twice.

    Args:
        read: returns the changes.
    """

    def __init__(self, read: ReadUsage) -> None:
        self._read = read
        self._version = 0
        self._before: dict[str, Usage] | None = None
        self._busy: dict[str, Usage] = {}
        self._pending: OrderedDict[str, Usage] = OrderedDict()

    @property
    def pending(self) -> bool:
        """True if there is a change to take."""
        return bool(self._pending)

    def poll(self) -> bool:
        """Look for changes, and return `pending`."""
        found, self._version = self._read(self._version)
        if self._before is None:
            self._before = {usage.owner: usage for usage in found}
        self._pending |= {usage.owner: self._since(usage) for usage in found if self._busy.get(usage.owner) != usage}
        self._busy = {usage.owner: usage for usage in found if usage.requests}
        return self.pending

    def _since(self, usage: Usage) -> Usage:
        before = self._before and self._before.get(usage.owner)
        if not before or before.count != usage.count:
            return usage
        prompt, sampled = before.prompt_tokens, before.sampled_tokens
        return replace(usage, prompt_tokens=usage.prompt_tokens - prompt, sampled_tokens=usage.sampled_tokens - sampled)

    def take(self) -> Usage:
        """Remove and return the oldest change. There must be one."""
        return self._pending.popitem(last=False)[1]
