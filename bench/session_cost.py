"""What a token costs the engine's front half on a session stream: 256 channels, one token each a step.

    python bench/session_cost.py [--channels 256] [--steps 500]

Prints microseconds of CPU a token: from a step's output into the logs (`logs`), what the session makes of it
(`session`), the message and its bytes (`message`), and all of it with a gRPC server that sends them to a reader in
another process (`served`; the reader's own CPU is not counted).
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import grpc
import uvloop
from headrace.v1 import request_service_pb2_grpc
from headrace.v1.session_pb2 import SessionRequest
from headrace_engine.config import SamplingParams
from headrace_engine.engine.detokenizer import Detokenizer
from headrace_engine.engine.outputs import Outputs
from headrace_engine.engine.requests import Sequence
from headrace_engine.engine.result_log import ResultLog
from headrace_engine.engine.session_channels import Place
from headrace_engine.engine.sessions import Sessions
from headrace_engine.engine.statistics import SequenceTimes, StepHistory
from headrace_engine.messages import AddSequence, StepOutput
from headrace_engine.service.convert_session import session_response
from headrace_engine.service.interceptor import FailureInterceptor
from headrace_engine.service.logs import configure_library
from headrace_engine.service.request_servicer import RequestServicer

PIECES = [f" word{number}".encode() for number in range(1000)]


class Request:
    """What a session needs of a request."""

    def __init__(self, sequence: Sequence, arrived: Callable[[], None]) -> None:
        self._sequence = sequence
        self.arrive = arrived

    def sequence(self, index: int) -> Sequence:
        """Its only one."""
        return self._sequence

    def leave(self) -> None:
        """It is gone."""


class Front:
    """A model's outputs with sequences that go on for ever, and the engine that a servicer asks."""

    name, instance_id = "bench", "0011"

    def __init__(self, channels: int) -> None:
        self.outputs = Outputs(time.time, StepHistory(time.time))
        self.requests = [Request(self._sequence(key), self._arrived) for key in range(channels)]
        self.all_attached = asyncio.Event()
        self.sessions = Sessions(self._find, list)
        self._ids = count()
        self._awaited = channels

    def _arrived(self) -> None:
        self._awaited -= 1
        if not self._awaited:
            self.all_attached.set()

    def _find(self, handle: str, owner: str) -> Any:
        return self.requests[int(handle)]

    def _sequence(self, key: int) -> Sequence:
        decoder = Detokenizer(PIECES.__getitem__, frozenset())
        sequence = Sequence(0, key, ResultLog(), decoder, SequenceTimes(time.time(), 10))
        self.outputs.add(sequence, AddSequence(key, (1, 2, 3), SamplingParams(), 1 << 30))
        return sequence

    def step(self) -> None:
        """One token for each."""
        keys = list(range(len(self.requests)))
        first = next(self._ids)
        ids = [(first + key) % 1000 for key in keys]
        self.outputs.process(StepOutput(keys=keys, token_ids=ids, batch_size=len(keys)))


async def stages(channels: int, steps: int) -> None:
    """Print what each stage costs, one after the other, without gRPC."""
    front = Front(channels)
    session = front.sessions.open()
    session.open(load=False)
    for number in range(channels):
        session.attach(Place(number + 1, str(number), 0), 0, 1 << 30, "", "attach")
    await session.next()
    spent = dict.fromkeys(("logs", "session", "message"), 0.0)
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
            spent[name] += stop - start
    session.close()
    for name, seconds in spent.items():
        print(f"{name:10}{seconds / steps / channels * 1e6:8.2f} us a token")


async def served(channels: int, steps: int) -> None:
    """Print what a process costs that serves a session by gRPC, a step every 20 ms."""
    front = Front(channels)
    server = grpc.aio.server(interceptors=[FailureInterceptor()])
    request_service_pb2_grpc.add_RequestServiceServicer_to_server(RequestServicer(front), server)  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader = multiprocessing.get_context("spawn").Process(target=read, args=(port, channels, channels * steps))
    reader.start()
    await front.all_attached.wait()
    began = time.process_time()
    for _ in range(steps):
        front.step()
        await asyncio.sleep(0.02)
    spent = time.process_time() - began
    await asyncio.to_thread(reader.join)
    await server.stop(None)
    print(f"{'served':10}{spent / steps / channels * 1e6:8.2f} us a token")


def read(port: int, channels: int, tokens: int) -> None:
    """Attach everything and read that many tokens."""
    asyncio.run(_read(port, channels, tokens))


async def _read(port: int, channels: int, tokens: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = request_service_pb2_grpc.RequestServiceStub(channel).Session()
        attach = [{"channel": n + 1, "handle": str(n), "window": 1 << 30} for n in range(channels)]
        await call.write(SessionRequest(options={}, attach=attach))
        while tokens > 0:
            tokens -= len((await call.read()).step.token_ids)
        call.cancel()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    configure_library()
    asyncio.run(stages(arguments.channels, arguments.steps))
    uvloop.run(served(arguments.channels, arguments.steps))


if __name__ == "__main__":
    main()
