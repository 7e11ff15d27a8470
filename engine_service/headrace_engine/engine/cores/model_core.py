"""The core of one model: its sequences, its launches, and its replacement after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from headrace_engine.block_keys import Scope, block_keys
from headrace_engine.engine.cores.core_client import CoreClient
from headrace_engine.engine.cores.core_link import CoreLauncher
from headrace_engine.engine.cores.outputs import Outputs
from headrace_engine.engine.cores.recovery import Recovery
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import Clock, StepHistory
from headrace_engine.errors import HeadraceError
from headrace_engine.ipc.commands import AddSequence, EndSequence, in_common
from headrace_engine.ipc.messages import CoreReady
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
from headrace_engine.model_types import CoreLoss, ModelProgress
from headrace_engine.result_types import FinishReason


class ModelCore:
    """What a model computes with: one core at a time, and the sequences that outlive it.

    Args:
        ping_limit: seconds without progress after which a core is killed.
        report: called with the progress of loading.
        relaunch: calls `launch` for the successor of a lost core.
        changed: called when a core was lost, and when its successor is ready.
        given_up: called with the reason when no successor will be started.

    Attributes:
        outputs: its sequences, and their results.
    """

    def __init__(
        self,
        launcher: CoreLauncher,
        clock: Clock,
        history: StepHistory,
        ping_limit: float,
        report: Callable[[ModelProgress], None],
        relaunch: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
        given_up: Callable[[HeadraceError], None],
    ) -> None:
        self.outputs = Outputs(clock, history)
        self._plan: CorePlan | None = None
        # The client reports a loss to the recovery, which closes and launches through the client.
        self._client = CoreClient(launcher, self.outputs, report, lambda loss: self._recovery.begin(loss), ping_limit)
        self._recovery = Recovery(self._client, self.outputs, clock, relaunch, changed, given_up)

    @property
    def epoch(self) -> int:
        """Number of cores started under the model's name; 0 before the first."""
        return self.outputs.history.cores

    @property
    def loss(self) -> CoreLoss | None:
        """The lost core, while its successor is not ready."""
        return self._recovery.loss

    async def launch(self, plan: CorePlan) -> CoreReady:
        """Start a core and wait until it is warm. The previous one must be closed.

        Raises:
            HeadraceError: it could not start.
        """
        self.outputs.cached.clear(plan.block_size)
        self._plan = plan
        return await self._client.launch(plan)

    def give_up(self) -> None:
        """Start no successor of a lost core any more."""
        self._recovery.give_up()

    async def close(self) -> None:
        """End the core, and wait until it is gone."""
        self._recovery.give_up()
        await self._client.close()

    async def load_adapter(self, adapter: AdapterPlan) -> None:
        """Have a running core load an adapter.

        Raises:
            BadModel: it could not.
            Unavailable: CORE_RESTARTING.
        """
        await self._client.load_adapter(adapter)

    def add(self, group: Mapping[Sequence, AddSequence]) -> None:
        """Send the sequences of a request to the core."""
        for sequence, command in group.items():
            self.outputs.add(sequence, command)
        for message in in_common(list(group.values())):
            self._client.send(message)

    def prompt_keys(self, sequence: Sequence, most: int) -> list[bytes]:
        """Return the keys of the full blocks of a sequence's prompt; none once it has ended, or where none is cached.

        Args:
            most: maximum number of keys.
        """
        command, plan = self.outputs.find_command(sequence), self._plan
        if command is None or plan is None or not (plan.enable_prefix_cache and command.use_prefix_cache):
            return []
        return list(block_keys(Scope.of(plan).narrowed(command), command.prompt, plan.block_size, most))

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence, if it still runs, and write its end record."""
        if self.outputs.finish(sequence, reason):
            self._client.send(EndSequence(sequence.key))

    def end_all(self, reason: FinishReason) -> None:
        """End all running sequences."""
        for key in self.outputs.finish_all(reason):
            self._client.send(EndSequence(key))

    async def drain(self, limit: float | None) -> None:
        """Let the running sequences end for at most `limit` seconds, then end them with DRAINED; None: no limit."""
        try:
            # Not wait_for: cancelled by a second signal, it would make asyncio log an exception never retrieved.
            async with asyncio.timeout(limit):
                await self.outputs.wait_idle()
        except TimeoutError:
            self.end_all(FinishReason.DRAINED)
