"""A request that has ended, for tests of leases."""

from __future__ import annotations

from headrace_engine.config import Lease
from headrace_engine.result_types import FinishReason

from support.engine.rig import Rig


async def ended(rig: Rig, lease: Lease | None = None) -> str:
    """A request that ended with one token."""
    accepted = await rig.start(config={"lease": lease})
    key = rig.added().key
    rig.core.step({key: 1}, ended={key: FinishReason.EOS})
    return accepted.handle
