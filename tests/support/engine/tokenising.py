"""A long prompt, and a tokenizer that waits until it is let go on."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from headrace_engine.engine.text.text import TextProcessor
from headrace_engine.engine.work.pools import INLINE_SIZE

from support.clocks.waiting import LIMIT
from support.engine.rig import Rig
from support.scripted.core import READY, ScriptedCore

LONG = "Hello world. " * (INLINE_SIZE // 10)


class Tokenising:
    """Holds long prompts in their thread until the test lets them go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go = threading.Event()
        tokenise = TextProcessor._tokenize_text

        def held(text: TextProcessor, prompt: str, adds: bool | None) -> Any:
            if len(prompt) > INLINE_SIZE:
                assert self._go.wait(LIMIT)
            return tokenise(text, prompt, adds)

        monkeypatch.setattr(TextProcessor, "_tokenize_text", held)

    def go(self) -> None:
        self._go.set()


async def run_wide(rig: Rig, **changes: Any) -> ScriptedCore:
    """Run a model whose core takes sequences as long as LONG."""
    rig.launcher.ready_at_once = replace(READY, max_length=4096)
    return await rig.run(**changes)
