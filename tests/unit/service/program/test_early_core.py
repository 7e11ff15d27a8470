"""What a core that begins with the service is told of the command line's model."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine.process import launch_process, launch_thread
from headrace_engine.service.program import main
from headrace_engine.service.program.arguments import parse_arguments


@pytest.mark.parametrize(
    ("settings", "known"), [((), True), (("--set", "format=GGUF"), False), (("--set", "file_prefix=b"), False)]
)
def test_it_knows_the_path_where_that_says_which_model_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...], known: bool
) -> None:
    begun: list[tuple[str, ...]] = []
    monkeypatch.setattr(main, "EarlyLauncher", lambda *what: begun.append(what))
    main._launcher(parse_arguments(["--backend", "cpu", "--model", f"a={tmp_path}", *settings]))
    assert begun == [("cpu", str(tmp_path) if known else "")]


@pytest.mark.parametrize("path", ["some/name", "x" * 5000], ids=["name", "no path"])
def test_it_does_not_know_what_is_not_there(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    begun: list[tuple[str, ...]] = []
    monkeypatch.setattr(main, "EarlyLauncher", lambda *what: begun.append(what))
    main._launcher(parse_arguments(["--model", f"a={path}"]))
    assert begun == [("auto", "")]


def test_without_a_model_no_core_begins() -> None:
    assert main._launcher(parse_arguments([])) is launch_process


def test_threads_need_no_beginning(tmp_path: Path) -> None:
    arguments = parse_arguments(["--core", "thread", "--model", f"a={tmp_path}"])
    assert main._launcher(arguments) is launch_thread
