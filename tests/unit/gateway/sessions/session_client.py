"""A client's session over a real channel, which reads only when told to."""

from __future__ import annotations

from typing import Any

import grpc
from headrace_proto.v1 import request_service_pb2_grpc
from headrace_proto.v1 import session_pb2 as wire
from support.clocks.waiting import ends
from unit.gateway.failures import Failure, failure_of
from unit.gateway.sessions.session_reading import Readings


class SessionClient(Readings):
    """One session on a channel of its own, with little room on the way, so that not reading is felt soon."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.channel = grpc.aio.insecure_channel(
            address,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.http2.bdp_probe", 0),
                ("grpc.max_receive_message_length", -1),
            ],
        )
        self.call = request_service_pb2_grpc.RequestServiceStub(self.channel).Session()

    async def __aenter__(self) -> SessionClient:
        return self

    async def __aexit__(self, *failure: Any) -> None:
        self.call.cancel()
        await self.channel.close()

    async def begin(self) -> SessionClient:
        await self.say(options=wire.SessionOptions(client="test"))
        await self.until(lambda: self.opened)
        return self

    async def say(self, **fields: Any) -> None:
        await self.call.write(wire.SessionRequest(**fields))

    async def read(self, handle: str, from_position: int = 0, **more: Any) -> int:
        """Attaches; returns the channel."""
        attach = self.attach(handle, from_position, **more)
        await self.say(attach=[attach])
        return attach.channel

    async def ack(self, channel: int, window: int | None = None) -> None:
        await self.say(acks=[wire.Ack(channel=channel, position=self.of[channel].position, window=window)])

    async def until(self, holds: Any) -> None:
        """Reads until something holds."""
        async with ends("nothing that the session tells makes it hold"):
            while not holds():
                message = await self.call.read()
                assert message is not grpc.aio.EOF, "the session ended"
                self.take(message)

    async def whole(self, channel: int) -> list[int]:
        """Reads until a sequence is complete; acknowledges what it is held back by."""
        reading = self.of[channel]
        while not reading.whole:
            if reading.window is not None:
                reading.window = None
                await self.ack(channel)
            await self.until(lambda: reading.whole or reading.window is not None)
        return reading.tokens

    async def failure(self) -> Failure:
        """Reads to the end, which must be a failure. Leaves when it is told to."""
        try:
            async with ends("the session does not end"):
                while (message := await self.call.read()) is not grpc.aio.EOF:
                    self.take(message)
                    if message.HasField("closing"):
                        await self.call.done_writing()
        except grpc.aio.AioRpcError as error:
            return failure_of(error)
        raise AssertionError("the session ended well")
