"""Messages are read in turn, so that their size times their number is bounded whoever sends them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from headrace.intake import FLOW_OPTIONS, Intake, NoMessage
from headrace_engine.engine.work.shares import Shares


class Messages:
    """A call's messages, which come when the test says so."""

    def __init__(self, message: bytes | None = b"m") -> None:
        self.asked, self.come = asyncio.Event(), asyncio.Event()
        self._message = message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.asked.set()
        await self.come.wait()
        if self._message is not None:
            yield self._message


def begun(intake: Intake, client: str, count: int) -> list[tuple[Messages, asyncio.Task[bytes]]]:
    calls = [Messages() for _ in range(count)]
    return [(each, asyncio.create_task(intake.read(client, each))) for each in calls]


async def asked(calls: list[tuple[Messages, asyncio.Task[bytes]]]) -> int:
    for _ in range(10):
        await asyncio.sleep(0)
    return sum(each.asked.is_set() for each, _ in calls)


async def test_f15_a_client_reads_its_share_and_then_waits() -> None:
    shares: Shares[str] = Shares(8)
    intake = Intake(shares)
    greedy, other = begun(intake, "greedy", 100), begun(intake, "other", 1)
    assert (await asked(greedy), await asked(other)) == (6, 1)
    for messages, task in (*greedy, *other):
        messages.come.set()
        await asyncio.sleep(0)
        del task
    assert [await task for _, task in (*greedy, *other)] == [b"m"] * 101
    assert (shares.taken, shares.parties) == (0, 0)


async def test_f15_clients_that_wait_have_their_turns() -> None:
    """One message of each, however many another one has waiting."""
    shares: Shares[str] = Shares(1)
    intake = Intake(shares)
    calls = {client: begun(intake, client, count) for client, count in (("a", 5), ("b", 2), ("c", 1))}
    order = []
    for _ in range(8):
        await asked([])
        read = [(client, each, task) for client, some in calls.items() for each, task in some if each.asked.is_set()]
        ((client, messages, _),) = [one for one in read if not one[2].done()]
        order.append(client)
        messages.come.set()
        await asked([])
    assert "".join(order) == "aabcabaa"
    assert shares.taken == 0


async def test_f15_who_leaves_while_it_waits_takes_no_turn() -> None:
    shares: Shares[str] = Shares(1)
    intake = Intake(shares)
    (first, reading), (_, left), (third, last) = (begun(intake, client, 1)[0] for client in "abc")
    await asked([])
    left.cancel()
    first.come.set()
    assert await reading == b"m"
    third.come.set()
    assert await last == b"m"
    assert shares.taken == 0


async def test_f15_who_leaves_as_its_turn_comes_passes_it_on() -> None:
    shares: Shares[str] = Shares(1)
    intake = Intake(shares)
    (first, reading), (_, left), (third, last) = (begun(intake, client, 1)[0] for client in "abc")
    await asked([])
    first.come.set()
    reading.add_done_callback(lambda _: left.cancel())
    third.come.set()
    assert await last == b"m"
    assert shares.taken == 0


async def test_f15_a_message_that_does_not_come_gives_its_place_back() -> None:
    shares: Shares[str] = Shares(1)
    intake = Intake(shares, seconds=0.01)
    with pytest.raises(NoMessage, match="no whole message came within"):
        await intake.read("a", Messages().__aiter__())
    absent = Messages(None)
    absent.come.set()
    with pytest.raises(NoMessage, match="no message came"):
        await intake.read("a", absent.__aiter__())
    assert shares.taken == 0


CLIENT = """
import asyncio, grpc, sys

async def main():
    options = [("grpc.max_send_message_length", 16 << 20)]
    async with grpc.aio.insecure_channel(sys.argv[1], options=options) as channel:
        call, data = channel.unary_unary("/a/b"), b"z" * (8 << 20)
        answers = await asyncio.gather(*(call(data) for _ in range(20)))
        print(sum(map(len, answers)))

asyncio.run(main())
"""


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_f15_messages_that_wait_are_not_in_memory() -> None:
    """Twenty calls of 8 MiB come while none may read: what the server has of them is a window each."""
    shares: Shares[str] = Shares(2)
    intake, arrived = Intake(shares), asyncio.Semaphore(0)

    async def handle(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        arrived.release()
        return (await intake.read(context.peer(), messages))[:1]

    class Calls(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.stream_unary_rpc_method_handler(handle)

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 16 << 20), *FLOW_OPTIONS])
    server.add_generic_rpc_handlers((Calls(),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    shares.take("somebody")
    shares.take("somebody")
    before = resident()
    program = (sys.executable, "-c", CLIENT, address)
    client = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    for _ in range(20):
        await arrived.acquire()
    assert resident() - before < 40 << 20
    for _ in range(2):
        shares.give_back("somebody")
    await intake.read("starter", _one())
    answer, _ = await client.communicate()
    assert answer.split() == [b"20"]
    await server.stop(None)


async def _one() -> AsyncIterator[bytes]:
    yield b"x"
