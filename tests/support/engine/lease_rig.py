"""A request that has ended, for tests of leases."""

from __future__ import annotations

from headrace_engine.config import Lease
from headrace_engine.request_types import RequestView
from headrace_engine.result_types import FinishReason, SequenceView

from support.engine.rig import Rig


async def ended(rig: Rig, lease: Lease | None = None) -> str:
    """A request that ended with one token."""
    accepted = await rig.start(config={"lease": lease})
    key = rig.added().key
    rig.core.step({key: 1}, ended={key: FinishReason.EOS})
    return accepted.handle


def listed(rig: Rig) -> list[RequestView]:
    """All requests, without being there for any."""
    return rig.engine.list_requests("")[0]


def alone(rig: Rig) -> SequenceView:
    """The one sequence there is, as ListRequests tells it."""
    (view,) = listed(rig)
    return view.sequences[0]
