"""The list of engines from a watched file and from DNS."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from headrace_gateway.membership import (
    LONGEST_FILE,
    DnsMembership,
    FileMembership,
    Membership,
    StaticMembership,
    name_of,
)
from headrace_gateway.options import EngineAddress
from headrace_proto.pure.addresses import Address
from support.clocks.waiting import LIMIT, ends, eventually

FIRST = "# two engines\n\ne1=127.0.0.1:7071\n  e2=[::1]:7072\n"


class Following:
    """Follows a membership, and keeps the lists that it passes on, as text."""

    def __init__(self, membership: Membership) -> None:
        self.lists: list[list[str]] = []
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(membership.follow(self._apply))

    def _apply(self, engines: Any) -> None:
        self.lists.append([f"{engine.name}={engine.address}" for engine in engines])
        self._changed.set()

    async def has(self, count: int) -> list[str]:
        async with ends(f"there are no {count} lists"):
            while len(self.lists) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.lists[-1]


@pytest.fixture
async def following():
    """Makes one, and ends it."""
    made: list[Following] = []

    def make(membership: Membership) -> Following:
        made.append(Following(membership))
        return made[-1]

    yield make
    for each in made:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in made), return_exceptions=True)


async def test_a_list_of_the_command_line_is_passed_on_once(following):
    engines = [EngineAddress.parse("e1=127.0.0.1:7071")]
    static = following(StaticMembership(engines))
    await static.task
    assert static.lists == [["e1=127.0.0.1:7071"]]


def waiting_threads() -> set[threading.Thread]:
    """Threads of this process, whoever started them, in which something blocking waits."""
    return {thread for thread in threading.enumerate() if thread.name == "headrace-wait"}


def replace(path: Path, text: str) -> None:
    """As a whole, so that nobody reads a half."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


async def test_a_file_is_read_again_when_it_changes(following, tmp_path: Path):
    path = tmp_path / "engines"
    replace(path, FIRST)
    file = following(FileMembership(path, interval=0.01))
    assert await file.has(1) == ["e1=127.0.0.1:7071", "e2=[::1]:7072"]
    replace(path, "e2=[::1]:7072\n")
    assert await file.has(2) == ["e2=[::1]:7072"]


@pytest.mark.parametrize("broken", ["e1", "e1=127.0.0.1:1\ne1=127.0.0.1:2", "e1=host:0", "", "# none\n", None])
async def test_the_last_list_holds_while_a_file_is_broken(following, tmp_path: Path, broken: str | None):
    path = tmp_path / "engines"
    replace(path, FIRST)
    membership = FileMembership(path, interval=0.005)
    file = following(membership)
    await file.has(1)
    if broken is None:
        path.unlink()
    else:
        replace(path, broken)
    await eventually(lambda: bool(membership._problem), "the file is not found to be broken")
    replace(path, "e3=127.0.0.1:7073\n")
    assert await file.has(2) == ["e3=127.0.0.1:7073"]
    assert len(file.lists) == 2


async def test_f1_a_file_system_that_hangs_costs_one_thread(tmp_path: Path) -> None:
    """However often the file is read meanwhile; once it answers, what was read counts."""
    os.mkfifo(path := tmp_path / "engines")
    file, before = FileMembership(path), waiting_threads()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await file.read()
    assert len(waiting_threads() - before) == 1
    path.write_text("e3=127.0.0.1:7073\n")
    assert [one.name for one in await file.read()] == ["e3"]


async def test_a_file_of_any_size_costs_bounded_memory_and_words(tmp_path: Path) -> None:
    long = tmp_path / "long"
    with long.open("wb") as file:
        file.truncate(2**40)
    for path in (long, Path("/dev/zero")):
        with pytest.raises(ValueError, match=f"more than {LONGEST_FILE} bytes"):
            await FileMembership(path).read()
    long.write_bytes(b"x" * LONGEST_FILE)
    with pytest.raises(ValueError, match="names no engine") as caught:
        await FileMembership(long).read()
    assert len(str(caught.value)) < 300


async def test_each_address_of_a_name_is_an_engine(following, monkeypatch: pytest.MonkeyPatch):
    answers: list[Any] = [["10.0.0.3", "10.0.0.2"], OSError("no such name"), ["10.0.0.2", "fd00::1"]]

    def look_up(host: str, port: int, **more: Any) -> list[Any]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    dns = following(DnsMembership(Address("engines", 7071), interval=0.005))
    assert await dns.has(1) == ["ip-10-0-0-2=10.0.0.2:7071", "ip-10-0-0-3=10.0.0.3:7071"]
    assert await dns.has(2) == ["ip-10-0-0-2=10.0.0.2:7071", "ip-fd00--1=[fd00::1]:7071"]


async def test_f1_a_resolver_that_hangs_costs_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, before = threading.Event(), waiting_threads()

    def look_up(host: str, port: int, **more: Any) -> list[Any]:
        assert answers.wait(LIMIT)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.2", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    dns = DnsMembership(Address("engines", 7071))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await dns.read()
    assert len(waiting_threads() - before) == 1
    answers.set()
    assert [one.name for one in await dns.read()] == ["ip-10-0-0-2"]


async def test_a_real_name_is_resolved(following):
    dns = following(DnsMembership(Address("localhost", 7071)))
    assert any(one.endswith("127.0.0.1:7071") or one.endswith("[::1]:7071") for one in await dns.has(1))


def test_names_of_addresses_are_names_of_engines():
    for host in ("10.1.2.3", "fd00::1", "fe80::1%eth0"):
        assert EngineAddress.parse(f"{name_of(host)}=h:1").name == name_of(host)
