"""Loads adapters between steps: one that fails is reported, and ends nothing."""

from __future__ import annotations

from headrace_proto.pure.faults import is_fault

from headrace_engine.commands import AdapterPlan
from headrace_engine.core.runner import Runner
from headrace_engine.errors import HeadraceError, in_words


def load_adapter(runner: Runner, adapter: AdapterPlan) -> str:
    """Load an adapter; return why it could not be loaded, or ""."""
    try:
        runner.load_adapter(adapter)
    except HeadraceError as error:
        return error.message
    except BaseException as error:
        if not is_fault(error):
            raise
        return in_words(error)
    return ""
