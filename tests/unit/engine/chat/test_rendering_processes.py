"""The processes that render chats: how many there are, and how they end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.chat_types import Chat, ChatMessage
from headrace_engine.engine.chat import frames as rendering_messages
from headrace_engine.engine.work import side_process, side_worker
from headrace_engine.errors import InvalidArgument, Unavailable
from headrace_engine.model_types import ModelState
from support.clocks.waiting import wait_until
from support.engine.rig import NAME, Rig
from support.logged import logged
from support.models.tiny_tokenizer import CHAT_TEMPLATE
from unit.engine.chat.conftest import Program
from unit.engine.chat.renderers import BOMB, HELLO, refused, render, renderer


class Started:
    """The processes that a test has started, and no others of this one."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def living(self) -> list[int]:
        """Pids of those that have not ended."""
        return [process.pid for process in self.all if process.returncode is None]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """What workers start is noted; no collection looks at it, as in a server, which freezes what models bring."""
    found = Started()

    class Noted(side_process.SideProcess):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.all.append(self._process)

    monkeypatch.setattr(side_worker, "SideProcess", Noted)
    gc.disable()
    yield found
    gc.enable()


@pytest.fixture
def killing(program: Program, tmp_path: Path) -> Path:
    """Where there is this file, `raise_exception` removes it and has its process killed."""
    flag = tmp_path / "flag"
    program(
        f"flag = Path({str(flag)!r})\n"
        "kill = lambda: (flag.unlink(), os.kill(os.getpid(), 9))\n"
        "sandbox._raise_exception = lambda message: '' if not flag.exists() else kill()\n"
    )
    return flag


class TestProcesses:
    def test_there_is_none_before_the_first_chat_and_one_after_it(self, started: Started) -> None:
        by = renderer("x")
        assert started.living() == []
        render(by)
        first = started.living()
        render(by)
        assert (len(first), started.living()) == (1, first)

    def test_it_ends_with_its_renderer(self, started: Started) -> None:
        by = renderer("x")
        render(by)
        assert len(started.living()) == 1
        del by
        assert started.living() == []

    def test_one_killed_between_chats_is_replaced_before_the_next(self, started: Started) -> None:
        """The system ends it first where memory runs out, and the chat that comes then is not to blame."""
        by = renderer("x")
        render(by)
        (pid,) = started.living()
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert render(by) == [("x", False)]
        assert pid not in started.living()

    def test_one_that_is_killed_while_it_renders_ends_no_chat(
        self, killing: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The system does that where memory runs out, whoever took it: the chat is rendered in another one."""
        by = renderer("{{ raise_exception('') if messages[0].content == 'Hello!' }}x")
        killing.touch()
        assert render(by) == [("x", False)]
        assert not killing.exists()
        assert logged(caplog, "headrace_engine") == ["rendering_process_ended: status -9, the chat is tried again"]

    def test_a_chat_that_ends_two_of_them_is_to_blame(self, program: Program) -> None:
        program("sandbox._raise_exception = lambda message: os.kill(os.getpid(), 9)\n")
        by = renderer(BOMB.replace("{{ BOMB }}", "{{ raise_exception('') }}"))
        render(by)
        error = refused(by, Chat((ChatMessage("user", "bomb"),)))
        assert error.reason == "BAD_TEMPLATE"
        assert "ended its process twice (status -9)" in error.message
        assert render(by) == [("Hello!", False)]

    def test_a_template_that_ends_two_of_them_is_to_blame(self, program: Program) -> None:
        program(
            "from headrace_engine.engine.chat import process as rendering_process\n"
            "rendering_process.ChatTemplate = lambda *_: os.kill(os.getpid(), 9)\n"
        )
        with pytest.raises(InvalidArgument) as caught:
            renderer("x", field="config.chat_template").check()
        assert (caught.value.reason, caught.value.violations[0].field) == ("BAD_TEMPLATE", "config.chat_template")

    def test_it_ends_when_its_renderer_is_closed(self, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
        by = renderer("x")
        render(by)
        assert len(started.living()) == 1
        by.close()
        by.close()
        assert started.living() == []
        monkeypatch.setattr(side_worker, "SideProcess", None)  # There is to be no other one.
        with pytest.raises(Unavailable):
            render(by)

    def test_closing_ends_a_chat_under_way(self, started: Started, program: Program, tmp_path: Path) -> None:
        begun = tmp_path / "begun"
        program(f"sandbox._raise_exception = lambda message: (Path({str(begun)!r}).touch(), time.sleep(600))\n")
        by = renderer("{{ raise_exception('') }}")
        with ThreadPoolExecutor(1) as pool:
            rendering = pool.submit(render, by)
            wait_until(begun.exists, "no chat is rendered")
            by.close()
            with pytest.raises(Unavailable):
                rendering.result()
        assert started.living() == []

    async def test_closing_an_engine_ends_all_of_them(self, started: Started, model_path: Path) -> None:
        rig = Rig(model_path)
        await rig.run()
        await rig.run("other")
        for name in (NAME, "other"):
            await rig.engine.tokenize(name, HELLO)
        assert len(started.living()) == 2
        await rig.engine.close()
        assert started.living() == []

    async def test_it_ends_when_its_model_is_released(self, started: Started, rig: Rig) -> None:
        await rig.install()
        await rig.engine.tokenize(NAME, HELLO)
        assert len(started.living()) == 1
        await rig.engine.release_model(NAME)
        assert started.living() == []

    async def test_it_ends_when_its_model_fails(self, started: Started, rig: Rig) -> None:
        await rig.run()
        await rig.engine.tokenize(NAME, HELLO)
        assert len(started.living()) == 1
        await rig.launcher.fail_restart()
        assert rig.state is ModelState.FAILED
        assert started.living() == []

    def test_it_goes_after_others_and_may_take_so_much(self, started: Started) -> None:
        by = renderer("x")
        render(by)
        (pid,) = started.living()
        with open(f"/proc/{pid}/limits") as file:
            (line,) = [line for line in file if line.startswith("Max address space")]
        assert str(rendering_messages.MAX_MEMORY) in line
        assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)


def test_f1_a_hanging_process_is_ended_and_others_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was stopped takes no processor time, by which it could end itself."""
    by = renderer(CHAT_TEMPLATE)
    whole = render(by)
    process = by._worker._process
    assert process is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    with monkeypatch.context() as hasty:
        hasty.setattr(side_process, "ANSWER_SECONDS", 0.001)
        assert "ended its process twice (status -9)" in refused(by).message
    assert process.has_ended
    assert render(by) == whole
    by.close()
