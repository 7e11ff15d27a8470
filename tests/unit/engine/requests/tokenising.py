"""A tokenizer that waits until it is let go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from headrace_engine.engine.text.text import TextProcessor
from headrace_engine.engine.work.pools import INLINE_SIZE
from support.clocks.waiting import LIMIT


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
