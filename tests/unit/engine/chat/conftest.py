"""Programs in the place of the processes that render chats."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace_engine.engine.work import side_worker

Program = Callable[[str], None]


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
