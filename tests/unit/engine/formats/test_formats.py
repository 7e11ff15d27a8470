"""Response formats are checked in a process, which may crash, and what became of them is remembered."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.engine.formats import formats as formats_module
from headrace_engine.engine.formats.checker import FormatChecker
from headrace_engine.engine.formats.formats import ResponseFormats
from headrace_engine.engine.formats.frames import Verdict, Words
from headrace_engine.engine.work import side_worker
from headrace_engine.engine.work.side_process import SideProcess
from headrace_engine.errors import Internal, InvalidArgument, ResourceExhausted, Unavailable
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from support.clocks.waiting import LIMIT
from support.models.tiny_models import make_tiny_llama
from support.models.tiny_tokenizer import VOCAB_SIZE

YES_OR_NO = ResponseFormat(ResponseFormatKind.CHOICE, choices=("yes", "no"))


def regex(text: str) -> ResponseFormat:
    return ResponseFormat(ResponseFormatKind.REGEX, text)


def schema(value: object) -> ResponseFormat:
    return ResponseFormat(ResponseFormatKind.JSON_SCHEMA, json.dumps(value))


def chained(count: int) -> ResponseFormat:
    """Rules that lead to each other."""
    rules = "\n".join(f"r{place}: r{place + 1}" for place in range(count))
    return ResponseFormat(ResponseFormatKind.GRAMMAR, f'start: r0\n{rules}\nr{count}: "a"')


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> TokenizerBundle:
    return load_tokenizer(open_model(str(make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny"))))


@pytest.fixture(scope="module")
def checker(bundle: TokenizerBundle) -> Iterator[FormatChecker]:
    checker = FormatChecker(Words(bundle.pieces, bundle.special_ids, VOCAB_SIZE))
    yield checker
    checker.close()


def refusal(checker: FormatChecker, wanted: ResponseFormat) -> str:
    with pytest.raises(InvalidArgument) as caught:
        checker.check(wanted)
    assert caught.value.reason == "BAD_RESPONSE_FORMAT"
    assert [violation.field for violation in caught.value.violations] == ["config.response_format"]
    return caught.value.message


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pid_of(checker: FormatChecker) -> int:
    process = checker._worker._process
    assert process is not None
    return process._process.pid


class TestChecker:
    def test_a_format_is_told_with_what_it_takes(self, checker: FormatChecker) -> None:
        verdict = checker.check(schema({"type": "string", "format": "path"}))
        assert verdict.grammar
        assert 0 < verdict.size < 8 << 20
        assert 0 <= verdict.seconds < 1
        assert "format path is not checked" in verdict.warnings[0]

    def test_f11_what_crashes_the_parser_is_refused(self, checker: FormatChecker) -> None:
        """Rules that follow each other take a stack; who checks them is another process the next time."""
        assert "nested or chained too deep" in refusal(checker, chained(3000))
        assert checker.check(YES_OR_NO).grammar

    def test_f11_shorter_chains_work(self, checker: FormatChecker) -> None:
        assert checker.check(chained(500)).grammar

    def test_f6_what_takes_the_library_without_end_is_refused(self, checker: FormatChecker) -> None:
        """A whole number of six digits would take ten seconds and 370 MB."""
        assert "more than 1 s of processor time" in refusal(checker, schema({"type": "integer", "multipleOf": 999_983}))
        assert checker.check(YES_OR_NO).grammar

    def test_f6_its_memory_stays_flat(self, checker: FormatChecker) -> None:
        """Also after refusals: where a slow machine takes too long for one, the process that comes next holds less."""
        for letter in "ab":
            checker.check(regex(f"({letter}{{1000}}){{40}}"))
        pid, before = pid_of(checker), resident(pid_of(checker))
        taken = sum(checker.check(regex(f"({letter}{{1000}}){{40}}")).size for letter in "cdefghijkl")
        assert taken > 100 << 20
        assert pid_of(checker) == pid
        assert resident(pid) - before < 40 << 20
        for letter in "cdefgh":
            refusal(checker, regex(f"({letter}{{1000}}){{800}}"))
        checker.check(YES_OR_NO)
        assert resident(pid_of(checker)) - before < 40 << 20

    def test_one_that_is_killed_from_outside_is_replaced(self, checker: FormatChecker) -> None:
        checker.check(YES_OR_NO)
        first = pid_of(checker)
        os.kill(first, signal.SIGKILL)
        assert checker.check(YES_OR_NO).grammar
        assert pid_of(checker) != first

    def test_half_a_surrogate_pair_cannot_be_asked_about(self, checker: FormatChecker) -> None:
        assert "surrogate" in refusal(checker, regex("\ud800"))
        assert checker.check(YES_OR_NO).grammar

    def test_it_ends_when_it_is_closed(self, bundle: TokenizerBundle) -> None:
        closed = FormatChecker(Words(bundle.pieces, bundle.special_ids, VOCAB_SIZE))
        closed.check(YES_OR_NO)
        pid = pid_of(closed)
        closed.close()
        closed.close()
        assert not Path(f"/proc/{pid}").exists()
        with pytest.raises(Unavailable):
            closed.check(YES_OR_NO)

    def test_it_ends_when_it_is_closed_while_its_process_starts(
        self, bundle: TokenizerBundle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever closes sees no process then, and waits for the turn: the one that is there by then is let go."""
        closing = FormatChecker(Words(bundle.pieces, bundle.special_ids, VOCAB_SIZE))
        asked: list[object] = []

        class Starting(SideProcess):
            def __init__(self, program: tuple[str, ...], task: str) -> None:
                closer.start()
                assert seen.wait(LIMIT)
                super().__init__(program, task)

            def ask(self, message: Any, kind: type[Any]) -> Any:
                asked.append(message)
                return super().ask(message, kind)

        class Turn:
            """The lock, which tells that somebody waits for it."""

            def __init__(self) -> None:
                self._lock = threading.Lock()

            def __enter__(self) -> None:
                if threading.current_thread() is closer:
                    seen.set()
                self._lock.acquire()

            def __exit__(self, *_: object) -> None:
                self._lock.release()

        closer, seen = threading.Thread(target=closing.close), threading.Event()
        monkeypatch.setattr(side_worker, "SideProcess", Starting)
        monkeypatch.setattr(closing._worker, "_turn", Turn())
        with pytest.raises(Unavailable):
            closing.check(YES_OR_NO)
        closer.join(LIMIT)
        assert not closer.is_alive()
        assert not asked
        assert closing._worker._process is None

    def test_a_format_is_not_to_blame_where_no_process_begins(
        self, bundle: TokenizerBundle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checker = FormatChecker(Words(bundle.pieces, bundle.special_ids, VOCAB_SIZE))
        monkeypatch.setattr(checker._worker, "_program", (sys.executable, "-c", "raise SystemExit(3)"))
        with pytest.raises(Internal, match="ended with status 3 at its start"):
            checker.check(YES_OR_NO)
        checker.close()


@pytest.fixture
def formats(bundle: TokenizerBundle) -> Iterator[ResponseFormats]:
    formats = ResponseFormats(bundle, VOCAB_SIZE)
    yield formats
    formats.close()


class TestResponseFormats:
    async def test_f6_the_same_format_is_checked_once(
        self, formats: ResponseFormats, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted: list[ResponseFormat] = []
        check = formats._checker.check
        monkeypatch.setattr(formats._checker, "check", lambda wanted: (counted.append(wanted), check(wanted))[1])
        bad = regex("[a-")
        for _ in range(3):
            verdict, _ = await formats.check(YES_OR_NO)
            assert verdict.grammar
            with pytest.raises(InvalidArgument):
                await formats.check(bad)
        assert counted == [YES_OR_NO, bad]

    async def test_a_process_that_is_killed_again_is_a_passing_refusal(
        self, formats: ResponseFormats, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where memory runs out the system ends it, whatever it checks: that is no word about the format."""

        class Killed(SideProcess):
            def ask(self, message: Any, kind: type[Any]) -> Any:
                if kinds and not isinstance(message, Words):
                    kinds.pop()
                    self.kill()
                return super().ask(message, kind)

        kinds = [1, 2]
        monkeypatch.setattr(side_worker, "SideProcess", Killed)
        with pytest.raises(ResourceExhausted) as caught:
            await formats.check(YES_OR_NO)
        assert caught.value.retry_after
        assert (await formats.check(YES_OR_NO))[0].grammar, "it was not remembered"

    async def test_without_a_format_there_is_nothing_to_check(self, formats: ResponseFormats) -> None:
        assert await formats.check(None) == (Verdict(), ())
        assert formats._checker._worker._process is None

    def test_f6_what_is_remembered_has_a_size(self, formats: ResponseFormats, monkeypatch: pytest.MonkeyPatch) -> None:
        long = "x" * 100_000
        monkeypatch.setattr(formats._checker, "check", lambda _: Verdict(long))
        for number in range(100):
            formats.look(regex(f"a{{{number}}}"))
        assert formats._remembered.size <= formats_module.MAX_REMEMBERED
        assert len(formats._remembered._entries) == formats_module.MAX_REMEMBERED // (100_000 + 512 + 200)

    @pytest.mark.parametrize("owner", ["other", "greedy"])
    async def test_f8_formats_of_one_caller_do_not_delay_another(
        self, formats: ResponseFormats, monkeypatch: pytest.MonkeyPatch, owner: str
    ) -> None:
        """Twenty slow ones: a choice has its turn after at most one of them more, also where all are one owner."""
        began, go, order = threading.Event(), threading.Event(), []

        def slow(wanted: ResponseFormat) -> Verdict:
            began.set()
            assert go.wait(LIMIT)
            order.append(wanted)
            return Verdict("g")

        monkeypatch.setattr(formats._checker, "check", slow)
        many = [asyncio.create_task(formats.check(regex(f"(a{{1000}}){{{number}}}"), "greedy")) for number in range(20)]
        await asyncio.to_thread(began.wait, LIMIT)
        other = asyncio.create_task(formats.check(YES_OR_NO, owner))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(other, *many)
        assert order.index(YES_OR_NO) <= 3
