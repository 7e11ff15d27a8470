"""A core that a test drives command by command, on the simulated runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from headrace_engine.core.core import Core
from headrace_engine.core.link import LinkClosed
from headrace_engine.core.scheduling.drafts.drafters import Drafter
from headrace_engine.core.scheduling.pace import Pace
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.core.warmup import start_up
from headrace_engine.ipc.commands import AddSequence, BeamPlan, CoreCommand, EndSequence, in_common
from headrace_engine.ipc.messages import CoreMessage, StepBegun
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.ipc.step_output import Ended, PooledPiece, PromptPiece, StepOutput
from headrace_engine.stat_types import CoreStat

from support.core.simulated import GREEDY, SimulatedRunner, expected, make_plan, tiny_vocabulary


class Drained(BaseException):
    """The core waits for a command."""


class ListLink:
    """A link whose commands come from a test."""

    def __init__(self) -> None:
        self.commands: list[CoreCommand] = []
        self.messages: list[CoreMessage] = []
        self.closed = False

    def receive(self, block: bool) -> list[CoreCommand]:
        commands, self.commands = self.commands, []
        if not commands and self.closed:
            raise LinkClosed
        if not commands and block:
            raise Drained
        return commands

    def send(self, *messages: CoreMessage) -> None:
        if self.closed:
            raise LinkClosed
        self.messages += messages


class Rig:
    """A core started on a simulated runner, and its published results by key.

    Attributes:
        make_runner: makes the runner; default: the simulated one.
        now: the core's time, which stands still until a test moves it.
    """

    make_runner: Callable[[CorePlan], Any] = SimulatedRunner

    def __init__(
        self,
        *,
        drafter: Drafter | None = None,
        costs: RowCosts | None = None,
        draft_costs: RowCosts | None = None,
        **changes: Any,
    ) -> None:
        self.plan = make_plan(**changes)
        self.runner = type(self).make_runner(self.plan)
        self.link = ListLink()
        self.now = 1000.0
        self.pace = Pace(self.plan.step_target, self.plan.block_size)
        sizes = start_up(self.plan, self.runner, self.link, self.pace, self.clock)
        if isinstance(self.runner, SimulatedRunner):
            self.runner.forget_warm_up()
        self.link.messages.clear()
        timing = {"clock": self.clock, "pace": self.pace, "costs": costs, "draft_costs": draft_costs}
        self.core = Core(self.plan, sizes, self.runner, self.link, tiny_vocabulary, **timing, drafter=drafter)
        self.requests: dict[int, AddSequence] = {}
        self.tokens: dict[int, list[int]] = {}
        self.ended: dict[int, Ended] = {}
        self.cached: dict[int, int] = {}
        self.fetched: dict[int, int] = {}
        self.preempted: list[int] = []
        self.prompt_logprobs: dict[int, list[tuple[float, list[int]]]] = {}
        self.pooled: dict[int, list[PooledPiece]] = {}
        self.vectors: dict[int, list[bytes]] = {}
        self.outputs: list[StepOutput] = []
        self.begun: list[list[int]] = []
        self.step()  # When first idle, a core reports the size of its pool.
        self.first = self.outputs.pop()

    def clock(self) -> float:
        """Return the core's time, including what the simulated runner's steps took."""
        return self.now + float(getattr(self.runner, "spent", 0.0))

    def add(self, prompt: Sequence[int], max_new: int = 4, **fields: Any) -> int:
        """Queue a sequence, and return its key."""
        key = len(self.requests) + 1
        sampling = fields.pop("sampling", GREEDY)
        self.requests[key] = request = AddSequence(key, tuple(prompt), sampling, max_new, **fields)
        self.tokens[key] = list(request.generated)
        self.link.commands.append(request)
        return key

    def search(self, prompt: Sequence[int], max_new: int, beams: BeamPlan, n: int = 1, **fields: Any) -> list[int]:
        """Queue a beam search; return the keys of the texts that it is to return, best first."""
        first = len(self.requests) + 1
        command = AddSequence(first, tuple(prompt), fields.pop("sampling", GREEDY), max_new, beams=beams, **fields)
        group = [replace(command, key=first + index, index=index) for index in range(n)]
        for each in group:
            self.requests[each.key], self.tokens[each.key] = each, []
        self.link.commands += in_common(group)
        return [each.key for each in group]

    def end(self, key: int) -> None:
        """Queue the end of a sequence."""
        self.link.commands.append(EndSequence(key))

    def step(self) -> None:
        """Run one step of the core; return what it published."""
        with suppress(Drained):
            self.core.step()
        for message in self.link.messages:
            self._note(message)
        self.link.messages.clear()

    def run(self) -> None:
        """Step until there is nothing to do, and the core is idle."""
        while self.core.busy or self.link.commands:
            self.step()
        self.step()

    def steps(self, count: int) -> None:
        """Run a number of steps."""
        for _ in range(count):
            self.step()

    @property
    def stat(self) -> CoreStat:
        """Return the statistics published last."""
        return (self.outputs or [self.first])[-1].stat

    def is_complete(self, key: int) -> bool:
        """True if a sequence has ended with all its expected ids."""
        return key in self.ended and self.tokens[key] == expected(self.requests[key])

    def assert_all_complete(self) -> None:
        """Assert that every sequence ended with exactly the ids that it gets alone on an unlimited pool."""
        wrong = [key for key in self.requests if not self.is_complete(key)]
        assert not wrong, f"sequences {wrong} have other ids than they get alone"

    def assert_idle(self) -> None:
        """End all sequences left, and assert that no resources are held."""
        self.runner.raises = self.runner.spoils = lambda step: False
        for key in self.requests:
            self.end(key)
        self.run()
        self.core.check_integrity()
        assert (self.stat.running, self.stat.waiting, self.stat.pool.blocks_used) == (0, 0, 0)
        assert self.stat.pool.blocks_cached + self.stat.pool.blocks_free == self.plan.num_blocks
        assert self.stat.pool.host_blocks_used <= self.stat.pool.host_blocks_total == self.plan.num_host_blocks

    def _note_piece(self, piece: PromptPiece) -> None:
        """Check that a prompt's pieces are consecutive and, outside of groups, precede its first token."""
        reported, top = self.prompt_logprobs.setdefault(piece.key, []), len(piece.top_ids) // len(piece.logprobs)
        request = self.requests[piece.key]
        assert piece.position == max(1, request.prompt_reported) + len(reported)
        assert piece.key not in self.ended
        assert request.group or len(self.tokens[piece.key]) == len(request.generated)
        rows = [piece.top_ids[row * top : (row + 1) * top] for row in range(len(piece.logprobs))]
        reported += zip(piece.logprobs, rows, strict=True)

    def _note(self, message: CoreMessage) -> None:
        if isinstance(message, StepBegun):
            self.begun.append(message.keys)
            return
        assert isinstance(message, StepOutput)
        self.outputs.append(message)
        for piece in message.prompts:
            self._note_piece(piece)
        for pooled in message.pooled:
            assert pooled.key not in self.ended
            assert len(self.tokens[pooled.key]) == len(self.requests[pooled.key].generated)
            self.pooled.setdefault(pooled.key, []).append(pooled)
        for key, tensors in zip(message.keys, message.tensors, strict=bool(message.tensors)):
            self.vectors.setdefault(key, []).append(tensors)
        for key, token in zip(message.keys, message.token_ids, strict=True):
            assert key not in self.ended, "a token after the end"
            self.tokens[key].append(token)
        for ended in message.ended:
            assert ended.key not in self.ended, "a second end"
            self.ended[ended.key] = ended
        self.cached.update((started.key, started.cached_tokens) for started in message.scheduled)
        self.fetched.update((started.key, started.host_tokens) for started in message.scheduled)
        self.preempted += message.preempted
        stat = message.stat
        assert stat.pool.blocks_used + stat.pool.blocks_cached + stat.pool.blocks_free == stat.pool.blocks_total


def assert_goes_on(first: Rig, second: Rig, wanted: list[dict[str, Any]]) -> None:
    """Hand the requests of a rig, in order, to another one with what they have; both end with whole texts."""
    for key, request in zip(list(first.requests), wanted, strict=True):
        later = second.add(**{**request, "prompt_logprobs": None}, generated=tuple(first.tokens[key]))
        assert later == key
        if key in first.ended:
            second.end(key)
    first.run()
    second.run()
    first.assert_all_complete()
    for key in set(second.requests) - set(first.ended):
        assert second.is_complete(key)
    for rig in (first, second):
        rig.assert_idle()
