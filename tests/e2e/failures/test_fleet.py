"""Engines come, go and are restarted behind a gateway, under load: no client sees an error, and no token is missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from headrace import Client
from support.clocks.waiting import LIMIT, wait_until
from support.servers.crowd import GREEDY, PATIENT, SAMPLED
from support.servers.processes import Server, engine_server, running
from support.servers.reading import Answer, Reading

LENGTH = 60


class Fleet:
    """Engines that run the model from their command lines, and the file that lists them."""

    def __init__(self, stack: ExitStack, tiny: Path, folder: Path) -> None:
        self._stack = stack
        self._tiny = tiny
        self.file = folder / "engines"
        self.engines: dict[str, Server] = {}

    def start(self, name: str) -> None:
        """Start an engine; list it once its model runs."""
        model = ("--model", f"tiny={self._tiny}", "--max-length", "2048", "--drain-limit", "1")
        engine = self._stack.enter_context(engine_server(name, *model))
        with Client(engine.address) as client:
            client.start_model("tiny")
        self.engines[name] = engine
        self.write()

    def write(self) -> None:
        """Write the list, as a whole."""
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{name}={engine.address}\n" for name, engine in self.engines.items()))
        new.replace(self.file)


@pytest.fixture
def fleet(tiny: Path, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack, tiny, tmp_path)


def names(client: Client) -> set[str]:
    """Engines that the gateway reaches."""
    return {engine.engine for engine in client.server_info().engines if engine.reachable}


class Load:
    """Starts requests one after the other and reads them, in threads, until it is ended."""

    def __init__(self, client: Client, threads: int = 3) -> None:
        self.answers: dict[int, list[Answer]] = {number: [] for number in range(threads)}
        self.failures: list[BaseException] = []
        self._client = client
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def count(self) -> int:
        """Answers that were read to their ends."""
        return sum(map(len, self.answers.values()))

    def end(self) -> None:
        """Let each thread finish what it reads."""
        self._ended.set()
        for thread in self._threads:
            thread.join(LIMIT)
            assert not thread.is_alive()

    def _run(self, number: int) -> None:
        config = SAMPLED | {"seed": number} if number % 2 else GREEDY
        try:
            while not self._ended.is_set():
                handle, queue = self._client.start_request("tiny", ids=[1, 2, number], max_new_tokens=LENGTH, **config)
                self.answers[number].append(Reading(queue).whole())
                self._client.release_request(handle)
        except BaseException as failure:
            self.failures.append(failure)


def grows(load: Load, by: int) -> None:
    """Wait until more answers have been read."""
    wanted = load.count() + by
    wait_until(lambda: bool(load.failures) or load.count() >= wanted, "no answers come any more")
    assert not load.failures


def test_all_engines_restart_one_by_one_under_load(fleet: Fleet) -> None:
    """Each drains with its streams, which go on elsewhere; new ones join through the file of the gateway."""
    for name in ("e1", "e2"):
        fleet.start(name)
    with running("-m", "headrace_gateway", "--listen", "127.0.0.1:0", "--engines-file", str(fleet.file)) as gateway:
        with Client(gateway.address, retry=PATIENT) as client:
            wait_until(lambda: names(client) == {"e1", "e2"}, "the engines are not reached")
            load = Load(client)
            grows(load, 3)
            for old, new in (("e1", "e3"), ("e2", "e4")):
                fleet.start(new)
                wait_until(lambda name=new: name in names(client), "the new engine is not noticed")  # type: ignore[misc]
                leaving = fleet.engines.pop(old)
                fleet.write()
                leaving.process.terminate()
                leaving.process.wait(LIMIT)
                grows(load, 3)
            wait_until(lambda: names(client) == {"e3", "e4"}, "the list is not followed")
            load.end()
            assert not load.failures
            assert all(len(set(answers)) == 1 for answers in load.answers.values())
            assert all(len(answers[0].ids) == LENGTH for answers in load.answers.values())
