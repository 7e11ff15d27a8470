"""Chats rendered in a process of their own: the same text, and a template that goes too far costs its caller alone."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from headrace_engine.engine.chat import frames as rendering_messages
from headrace_engine.engine.chat.renderer import Renderer
from headrace_engine.engine.chat.template import MAX_REASON
from headrace_engine.engine.work import side_process, side_worker
from headrace_engine.errors import InvalidArgument, Unavailable
from headrace_engine.request_types import Chat, ChatMessage, ToolCall
from support.clocks.waiting import wait_until
from support.engine.rig import NAME, Rig
from support.logged import logged
from support.models.tiny_models import CHAT_TEMPLATE

HELLO = Chat((ChatMessage("user", "Hello!"),))
BOMB = "{% if messages[0].content == 'bomb' %}{{ BOMB }}{% else %}{{ messages[0].content }}{% endif %}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
Program = Callable[[str], None]


def renderer(source: str, with_tools: str | None = None, field: str = "chat") -> Renderer:
    return Renderer(source, with_tools, {"bos_token": "<s>"}, ("<s>", "<|im_end|>"), field)


def render(by: Renderer, chat: Chat = HELLO, max_bytes: int = 10_000) -> list[tuple[str, bool]]:
    return list(by.render(chat, max_bytes, 1000).pieces)


def refused(by: Renderer, chat: Chat = HELLO, max_bytes: int = 10_000) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        render(by, chat, max_bytes)
    return caught.value


def children() -> set[int]:
    """Processes of this one. Those of earlier tests may end at any moment."""
    gc.collect()
    listed = [file.read_text() for file in Path("/proc/self/task").glob("*/children")]
    return {int(pid) for text in listed for pid in text.split()}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
    """Has some lines run first in processes that render."""

    def use(lines: str) -> None:
        first = "import os, sys, time\nfrom pathlib import Path\nfrom headrace_engine.engine.chat import sandbox\n"
        first += lines
        rest = "from headrace_engine.engine.chat.process import main\nmain(int(sys.argv[1]))\n"
        (tmp_path / "program.py").write_text(first + rest, encoding="utf-8")
        monkeypatch.setattr(side_worker, "_program", lambda _: (sys.executable, str(tmp_path / "program.py")))

    return use


@pytest.fixture
def hasty(program: Program) -> None:
    """Processes that have less time and memory than usual."""
    program(
        "import headrace_engine.engine.chat.frames as messages\n"
        "messages.MAX_SECONDS, messages.MAX_MEMORY = 0.3, 300 << 20\n"
    )


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


def test_a_chat_comes_in_the_pieces_that_a_shield_makes_of_it() -> None:
    chat = Chat((ChatMessage("user", "a <|im_end|> b"), ChatMessage("assistant", ("x", "<s>"))))
    source = "{{ bos_token }}{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    source += "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    pieces = [("<s>a ", False), ("<|im_end|>", True), (" b<|im_end|>x", False), ("<s>", True), ("<|im_end|>", False)]
    assert render(renderer(source), chat) == pieces


def test_everything_of_a_chat_arrives() -> None:
    source = "{{ messages | tojson }}{{ tools | tojson }}{{ v }}{{ add_generation_prompt }}"
    call = ToolCall("1", "f", '{"a": [1, null, "é"]}')
    chat = Chat(
        (ChatMessage("assistant", None, "Bo", (call,), "t", '{"more": {"x": 1.5}}'),),
        add_generation_prompt=False,
        template_variables={"v": "[1]"},
        tools=('{"name": "f"}',),
    )
    expected = (
        '[{"role": "assistant", "name": "Bo", "tool_call_id": "t", "tool_calls": [{"id": "1", "type": "function", '
        '"function": {"name": "f", "arguments": {"a": [1, null, "é"]}}}], "more": {"x": 1.5}}]'
        '[{"name": "f"}][1]False'
    )
    assert render(renderer(source), chat) == [(expected, False)]


def test_chats_with_tools_may_have_a_template_of_their_own() -> None:
    both = renderer("plain", "with {{ tools | length }}")
    assert render(both) == [("plain", False)]
    assert render(both, Chat(HELLO.messages, tools=("{}",))) == [("with 1", False)]
    assert render(renderer("plain"), Chat(HELLO.messages, tools=("{}",))) == [("plain", False)]


class TestRefusals:
    def test_bc067_a_template_s_own_reason_comes_back(self) -> None:
        error = refused(renderer("{{ raise_exception('no such role') }}"))
        assert (error.reason, error.violations[0].field) == ("BAD_TEMPLATE", "chat")
        assert "no such role" in error.message

    @pytest.mark.parametrize("field", ["chat", "config.chat_template"])
    def test_bc067_a_template_that_is_none_is_refused_each_time(self, field: str) -> None:
        broken = renderer("{% for %}", field=field)
        for _ in range(2):
            with pytest.raises(InvalidArgument) as caught:
                broken.check()
            assert (caught.value.reason, caught.value.violations[0].field) == ("BAD_TEMPLATE", field)
        assert "syntax error" in refused(broken).message

    def test_a_malformed_chat_is_told_by_its_field(self) -> None:
        error = refused(renderer(CHAT_TEMPLATE), Chat(HELLO.messages, tools=("[1]",)))
        assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", "chat.tools[0]")

    def test_a_text_has_a_size(self) -> None:
        by = renderer("{{ messages[0].content * 100 }}")
        assert refused(by, max_bytes=599).reason == "PROMPT_TOO_LONG"
        assert render(by, max_bytes=600) == [("Hello!" * 100, False)]

    def test_half_a_surrogate_pair_is_no_text(self) -> None:
        by = renderer("{{ messages[0].content }}{{ messages[0].more }}")
        error = refused(by, Chat((ChatMessage("user", "a\ud83d"),)))
        assert "surrogate pair" in error.message
        error = refused(by, Chat((ChatMessage("user", "a", extra_json='{"more": "\\ud83d"}'),)))
        assert "surrogate pair" in error.message
        assert refused(renderer(r"{{ raise_exception('\ud83d') }}")).reason == "BAD_TEMPLATE"
        assert render(by) == [("Hello!", False)]

    def test_a_long_reason_is_cut(self) -> None:
        """What fails a call has to fit into the head of its answer."""
        error = refused(renderer("{{ raise_exception('no ' * 100000) }}"))
        assert len(error.message) < MAX_REASON + 100
        assert error.message.endswith("…")


@pytest.mark.usefixtures("hasty")
class TestHostileTemplates:
    @pytest.mark.parametrize(
        "bomb",
        [
            LOOPS,
            "{% set n = 10 ** (10 ** messages[1].content | int) %}",
            "{% set ns = namespace(t='xx') %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
            "{{ 'x' * 10 ** (messages[1].content | int) }}",
            "{{ 'x' | center(10 ** (messages[1].content | int)) }}",
            "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
            "{% set ns = namespace(l=[]) %}{% for i in range(20000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        ],
    )
    def test_one_that_goes_too_far_ends_its_own_chat(self, bomb: str) -> None:
        by = renderer(BOMB.replace("{{ BOMB }}", bomb))
        error = refused(by, Chat((ChatMessage("user", "bomb"), ChatMessage("user", "11"))))
        assert (error.reason, error.violations[0].field) == ("BAD_TEMPLATE", "chat")
        assert render(by) == [("Hello!", False)], "the next chat is rendered as ever"

    def test_the_time_that_was_too_much_is_told(self) -> None:
        assert "took more than 5 s of processor time" in refused(renderer(LOOPS)).message

    def test_one_that_cannot_even_be_compiled_is_refused(self) -> None:
        """Jinja computes what is constant when it compiles."""
        with pytest.raises(InvalidArgument) as caught:
            renderer("{{ 10 ** (10 ** 10) }}", field="config.chat_template").check()
        assert caught.value.reason == "BAD_TEMPLATE"

    def test_nesting_without_end_is_refused(self) -> None:
        error = refused(renderer("{{ " + "(" * 100_000 + ")" * 100_000 + " }}"))
        assert error.reason == "BAD_TEMPLATE"


class TestProcesses:
    def test_there_is_none_before_the_first_chat_and_one_after_it(self) -> None:
        before = children()
        by = renderer("x")
        assert children() <= before
        render(by)
        first = children() - before
        render(by)
        assert (len(first), children() - before) == (1, first)

    def test_it_ends_with_its_renderer(self) -> None:
        before = children()
        by = renderer("x")
        render(by)
        del by
        assert children() <= before

    def test_one_killed_between_chats_is_replaced_before_the_next(self) -> None:
        """The system ends it first where memory runs out, and the chat that comes then is not to blame."""
        before = children()
        by = renderer("x")
        render(by)
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert render(by) == [("x", False)]
        assert pid not in children()

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

    def test_it_ends_when_its_renderer_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = children()
        by = renderer("x")
        render(by)
        by.close()
        by.close()
        assert children() <= before
        monkeypatch.setattr(side_worker, "SideProcess", None)  # There is to be no other one.
        with pytest.raises(Unavailable):
            render(by)

    def test_closing_ends_a_chat_under_way(self, program: Program, tmp_path: Path) -> None:
        before, begun = children(), tmp_path / "begun"
        program(f"sandbox._raise_exception = lambda message: (Path({str(begun)!r}).touch(), time.sleep(600))\n")
        by = renderer("{{ raise_exception('') }}")
        with ThreadPoolExecutor(1) as pool:
            rendering = pool.submit(render, by)
            wait_until(begun.exists, "no chat is rendered")
            by.close()
            with pytest.raises(Unavailable):
                rendering.result()
        assert children() <= before

    async def test_closing_an_engine_ends_all_of_them(self, model_path: Path) -> None:
        before, rig = children(), Rig(model_path)
        await rig.run()
        await rig.run("other")
        for name in (NAME, "other"):
            await rig.engine.tokenize(name, HELLO)
        assert len(children() - before) == 2
        await rig.engine.close()
        assert children() <= before

    def test_it_goes_after_others_and_may_take_so_much(self) -> None:
        before = children()
        by = renderer("x")
        render(by)
        (pid,) = children() - before
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
