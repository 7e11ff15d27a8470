"""A gateway as a process of its own."""

from __future__ import annotations

import json

import grpc
from grpc_health.v1 import health_pb2_grpc
from headrace_proto.v1 import engine_service_pb2_grpc, model_service_pb2_grpc, request_service_pb2_grpc
from support.clocks.waiting import ends


class Process:
    """A gateway process, its log, and a channel to it."""

    def __init__(self, process):
        self._process = process
        self.events = []
        self.text = ""

    async def event(self, name):
        """The next log event of that name."""
        async with ends(f"no {name} is logged"):
            while line := (await self._process.stderr.readline()).decode():
                self.text += line
                self.events.append(json.loads(line))
                if self.events[-1]["event"] == name:
                    return self.events[-1]
        raise AssertionError(f"no {name} in {self.text}")

    async def connect(self):
        self.port = (await self.event("listening"))["port"]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        self.requests = request_service_pb2_grpc.RequestServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.facts = engine_service_pb2_grpc.EngineServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        return self

    def signal(self, number):
        self._process.send_signal(number)

    async def ended(self):
        """Exit status; the rest of the log is read."""
        async with ends("the gateway does not end"):
            rest = (await self._process.stderr.read()).decode()
        self.text += rest
        self.events += [json.loads(line) for line in rest.splitlines() if line.startswith("{")]
        return await self._process.wait()

    async def close(self):
        if hasattr(self, "channel"):
            await self.channel.close()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._process._transport.close()


def listening(engine, *more, port=0):
    return ["--listen", f"127.0.0.1:{port}", "--engine", f"e1={engine.address}", "--poll-interval", "0.1", *more]
