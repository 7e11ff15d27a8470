"""Adapters that an engine has refused to know lately: requests for them go elsewhere first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_FORGOTTEN = 10.0
"""Seconds after which an engine is asked again: the adapter may have been loaded."""

_MOST = 1024
"""Number of adapters that are remembered; callers choose names."""


class LackedAdapters:
    """The adapters that one engine lacks, by model and name, as it said itself.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: OrderedDict[tuple[str, str], float] = OrderedDict()

    def note(self, model_name: str, adapter: str) -> None:
        """Note that the engine refused an adapter."""
        self._refused[model_name, adapter] = self._clock()
        self._refused.move_to_end((model_name, adapter))
        if len(self._refused) > _MOST:
            self._refused.popitem(last=False)

    def forget(self, model_name: str, adapter: str) -> None:
        """Note that the engine has an adapter."""
        self._refused.pop((model_name, adapter), None)

    def __contains__(self, pair: tuple[str, str]) -> bool:
        """Return True if the engine has refused this adapter of this model within the last seconds."""
        refused = self._refused.get(pair)
        return refused is not None and self._clock() - refused < _FORGOTTEN
