"""Messages are read in turn, so that their size times their number is bounded whoever sends them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc
import pytest
from headrace_proto.pure.host_shares import host_of
from headrace_proto.server.intake import Intake, NoMessage


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
    intake = Intake(8)
    greedy, other = begun(intake, "greedy", 100), begun(intake, "other", 1)
    assert (await asked(greedy), await asked(other)) == (4, 1)
    for messages, task in (*greedy, *other):
        messages.come.set()
        await asyncio.sleep(0)
        del task
    assert [await task for _, task in (*greedy, *other)] == [b"m"] * 101
    assert intake.shares.taken == 0


async def test_f15_clients_that_wait_have_their_turns() -> None:
    """One message of each, however many another one has waiting."""
    intake = Intake(1)
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
    assert intake.shares.taken == 0


async def test_f15_many_connections_of_a_host_delay_no_other_host() -> None:
    """Seventy connections begin calls and send nothing; what others send is read at once."""
    intake = Intake()
    silent = [begun(intake, f"ipv4:192.0.2.1:{port}", 1)[0] for port in range(70)]
    assert await asked(silent) == 48
    others = [begun(intake, f"ipv4:192.0.2.{host}:1", 1)[0] for host in (2, 3)]
    assert await asked(others) == 2
    waits = begun(intake, "ipv6:%5B2001:db8::1%5D:1", 20)
    assert await asked(waits) > 1
    for messages, _ in (*silent, *others, *waits):
        messages.come.set()
    assert [await task for _, task in (*silent, *others, *waits)] == [b"m"] * 92
    assert intake.shares.taken == 0


async def test_f15_hosts_that_wait_have_turns_whatever_connections() -> None:
    intake = Intake(1)
    (holding, held), *crowd = (begun(intake, f"ipv4:192.0.2.1:{port}", 1)[0] for port in range(70))
    (other, last) = begun(intake, "ipv4:192.0.2.2:1", 1)[0]
    await asked([])
    holding.come.set()
    await held
    ((first, _),) = [one for one in crowd if one[0].asked.is_set()] or [(other, last)]
    first.come.set()
    await asked([])
    assert other.asked.is_set()
    for messages, _ in (*crowd, (other, last)):
        messages.come.set()
    await asyncio.gather(last, *(task for _, task in crowd))


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.1:5000", "192.0.2.1"),
        ("ipv6:%5B::ffff:192.0.2.1%5D:5000", "192.0.2.1"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "fe80::/64"),
        ("unix:/run/headrace.sock", "unix"),
        ("unix:", "unix"),
        ("ipv4:nonsense", "ipv4"),
    ],
)
def test_f15_a_host_is_an_address_without_its_port(peer: str, host: str) -> None:
    assert host_of(peer) == host


async def test_f15_who_leaves_while_it_waits_takes_no_turn() -> None:
    intake = Intake(1)
    (first, reading), (_, left), (third, last) = (begun(intake, client, 1)[0] for client in "abc")
    await asked([])
    left.cancel()
    first.come.set()
    assert await reading == b"m"
    third.come.set()
    assert await last == b"m"
    assert intake.shares.taken == 0


async def test_f15_who_leaves_as_its_turn_comes_passes_it_on() -> None:
    intake = Intake(1)
    (first, reading), (_, left), (third, last) = (begun(intake, client, 1)[0] for client in "abc")
    await asked([])
    first.come.set()
    reading.add_done_callback(lambda _: left.cancel())
    third.come.set()
    assert await last == b"m"
    assert intake.shares.taken == 0


@pytest.mark.parametrize("crowd", ["ipv4:192.0.{0}.{1}:1", "ipv4:192.0.2.9:{0}{1:03}"])
async def test_f15_any_number_that_left_hold_up_nobody(crowd: str) -> None:
    """Of many hosts, or of many connections of one, all but the last leave while they wait."""
    intake = Intake(1)
    (first, reading) = begun(intake, "first", 1)[0]
    await asked([])
    left = [begun(intake, crowd.format(each // 200, each % 200), 1)[0][1] for each in range(300)]
    (third, last) = begun(intake, crowd.format(9, 9), 1)[0]
    await asked([])
    for each in left:
        each.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    first.come.set()
    assert await reading == b"m"
    assert await asked([(third, last)]) == 1
    third.come.set()
    assert await last == b"m"
    assert (intake.shares.taken, len(intake._waiting)) == (0, 0)


async def test_f15_a_message_that_does_not_come_gives_its_place_back() -> None:
    intake = Intake(1, seconds=0.01)
    with pytest.raises(NoMessage, match="no whole message came within"):
        await intake.read("a", Messages().__aiter__())
    absent = Messages(None)
    absent.come.set()
    with pytest.raises(NoMessage, match="no message came"):
        await intake.read("a", absent.__aiter__())
    assert intake.shares.taken == 0


SERVER = """
import asyncio, sys
from pathlib import Path
import grpc
from headrace_proto.server.intake import FLOW_OPTIONS, Intake

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

async def one():
    yield b"x"

async def main():
    intake, arrived = Intake(2), asyncio.Semaphore(0)

    async def handle(messages, context):
        arrived.release()
        return (await intake.read(context.peer(), messages))[:1]

    class Calls(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.stream_unary_rpc_method_handler(handle)

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 16 << 20), *FLOW_OPTIONS])
    server.add_generic_rpc_handlers((Calls(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    intake.shares.take("somebody")
    intake.shares.take("somebody")
    before = resident()
    print(port, flush=True)
    for _ in range(20):
        await arrived.acquire()
    print(resident() - before, flush=True)
    for _ in range(2):
        intake.shares.give_back("somebody")
    await intake.read("starter", one())
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)

asyncio.run(main())
"""


async def test_f15_messages_that_wait_are_not_in_memory() -> None:
    """Twenty calls of 8 MiB come while none may read: what the server has of them is a window each."""
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdin=pipe, stdout=pipe)
    assert server.stdout is not None
    address = f"127.0.0.1:{int(await server.stdout.readline())}"
    options = [("grpc.max_send_message_length", 16 << 20)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call, data = channel.unary_unary("/a/b"), b"z" * (8 << 20)
        answers = [asyncio.ensure_future(call(data)) for _ in range(20)]
        grown = int(await server.stdout.readline())
        assert await asyncio.gather(*answers) == [b"z"] * 20
    await server.communicate(b"")
    assert server.returncode == 0
    assert grown < 40 << 20
