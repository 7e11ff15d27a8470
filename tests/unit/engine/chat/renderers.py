"""Chat templates rendered in a process of their own."""

from __future__ import annotations

import pytest
from headrace_engine.chat_types import Chat, ChatMessage
from headrace_engine.engine.chat.renderer import Renderer
from headrace_engine.errors import InvalidArgument

HELLO = Chat((ChatMessage("user", "Hello!"),))
BOMB = "{% if messages[0].content == 'bomb' %}{{ BOMB }}{% else %}{{ messages[0].content }}{% endif %}"


def renderer(source: str, with_tools: str | None = None, field: str = "chat") -> Renderer:
    return Renderer(source, with_tools, {"bos_token": "<s>"}, ("<s>", "<|im_end|>"), field)


def render(by: Renderer, chat: Chat = HELLO, max_bytes: int = 10_000) -> list[tuple[str, bool]]:
    return list(by.render(chat, max_bytes, 1000).pieces)


def refused(by: Renderer, chat: Chat = HELLO, max_bytes: int = 10_000) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        render(by, chat, max_bytes)
    return caught.value
