"""Texts that a text processor refuses."""

from __future__ import annotations

import pytest
from headrace_engine.chat_types import Chat
from headrace_engine.engine.text.text import TextProcessor
from headrace_engine.errors import InvalidArgument

LONGEST = 5000


async def refused(
    text: TextProcessor, prompt: str | Chat, adds: bool | None = None, longest: int = LONGEST
) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        await text.tokenize(prompt, adds, longest)
    return caught.value
