"""Measure the cost of a token in the engine's front half on a session stream: 256 channels, one token each a step.

    python -m bench.service.session_cost [--channels 256] [--steps 500]

Prints microseconds of CPU a token, medians over the steps: from a step's output into the logs (`logs`), what the
session makes of it (`session`), the message and its bytes (`message`). `bench.service` measures all of it with real
processes.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from itertools import count
from statistics import median
from typing import Any

from headrace_engine.characters.detokenizer import Detokenizer
from headrace_engine.engine.cores.outputs import Outputs
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import SequenceTimes, StepHistory
from headrace_engine.engine.sessions.session_channels import Attachment
from headrace_engine.engine.sessions.sessions import Sessions
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.sampling_params import SamplingParams
from headrace_engine.service.convert.session import session_response

PIECES = [f" word{number}".encode() for number in range(1000)]


class Request:
    """The part of a request that a session uses."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence

    def arrive(self) -> None:
        """Ignore a reader's arrival."""

    def sequence(self, index: int) -> Sequence:
        """Return its only sequence."""
        return self._sequence

    def leave(self) -> None:
        """Ignore a reader's leaving."""


class Front:
    """A model's outputs with endless sequences, and the sessions that read them."""

    def __init__(self, channels: int) -> None:
        self.outputs = Outputs(time.time, StepHistory(time.time))
        self.requests = [Request(self._sequence(key)) for key in range(channels)]
        self.sessions = Sessions(self._find, list, dict, lambda version: ([], version))
        self._ids = count()

    def _find(self, handle: str, owner: str) -> Any:
        return self.requests[int(handle)]

    def _sequence(self, key: int) -> Sequence:
        decoder = Detokenizer(PIECES.__getitem__, frozenset())
        sequence = Sequence(0, key, ResultLog(), decoder, SequenceTimes(time.time(), 10))
        self.outputs.add(sequence, AddSequence(key, (1, 2, 3), SamplingParams(), 1 << 30))
        return sequence

    def step(self) -> None:
        """Run a step of one token per sequence."""
        keys = list(range(len(self.requests)))
        first = next(self._ids)
        ids = [(first + key) % 1000 for key in keys]
        self.outputs.process(StepOutput(keys=keys, token_ids=ids, batch_size=len(keys)))


async def stages(channels: int, steps: int) -> None:
    """Measure and print the cost of each stage in order, without gRPC."""
    front = Front(channels)
    session = front.sessions.open()
    session.open(load=False)
    for number in range(channels):
        session.attach(Attachment(number + 1, str(number), 0), 0, 1 << 30, "", "attach")
    await session.next()
    spent: dict[str, list[float]] = {"logs": [], "session": [], "message": []}
    for _ in range(steps):
        times = [time.process_time()]
        front.step()
        times.append(time.process_time())
        update = await session.next()
        times.append(time.process_time())
        assert update is not None
        assert len(update.rows.channels) == channels
        session_response(update, "bench", "0011").SerializeToString()
        times.append(time.process_time())
        for name, start, stop in zip(spent, times[:-1], times[1:], strict=True):
            spent[name].append(stop - start)
    session.close()
    for name, seconds in spent.items():
        print(f"{name:10}{median(seconds) / channels * 1e6:8.2f} us a token")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    asyncio.run(stages(arguments.channels, arguments.steps))


if __name__ == "__main__":
    main()
