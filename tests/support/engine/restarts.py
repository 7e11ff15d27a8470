"""Actions and queries for tests of lost cores."""

from __future__ import annotations

import pytest
from headrace_engine.errors import HeadraceError
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.request_types import AcceptedRequest
from headrace_engine.result_types import SequenceView

from support.clocks.clock import settle
from support.engine.rig import NAME, Rig
from support.scripted.core import ScriptedCore


async def started(rig: Rig, count: int) -> list[AcceptedRequest]:
    """Start requests with prompts (1, 1), (2, 2) and so on."""
    return [await rig.start((number, number)) for number in range(1, count + 1)]


def by_prompt(core: ScriptedCore) -> list[int]:
    """Return the prompt numbers of the sequences sent to a core."""
    return [command.prompt[0] for command in core.added]


def command(core: ScriptedCore, number: int) -> AddSequence:
    """Return the last command for the prompt of this number."""
    return [command for command in core.added if command.prompt[0] == number][-1]


async def ids(rig: Rig, accepted: AcceptedRequest) -> list[int]:
    elements = await rig.unread(accepted.handle)
    return elements.token_ids if elements else []


async def ended(rig: Rig, accepted: AcceptedRequest) -> SequenceView:
    sequence = await rig.sequence(accepted.handle)
    assert sequence.end is not None
    return sequence


async def lose(rig: Rig, reason: str = "killed by signal 9") -> ScriptedCore:
    """Lose the core, and return the next one."""
    rig.core.die(reason)
    await settle()
    return rig.core


async def rest() -> None:
    """Let a heartbeat without a limit check often enough."""
    for _ in range(5):
        await settle()


async def prove(core: ScriptedCore, number: int) -> None:
    """Give a suspect the two tokens that clear it."""
    for token_id in (90, 91):
        core.step({command(core, number).key: token_id})
    await settle()


def loss(rig: Rig) -> str | None:
    found = rig.engine.get_model(NAME).core_loss
    return found.reason if found else None


async def refused(rig: Rig) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        await rig.start()
    return caught.value
