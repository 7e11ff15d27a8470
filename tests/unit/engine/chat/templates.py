"""Chat templates rendered in the test's own process."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from headrace_engine.chat_types import Chat, ChatMessage
from headrace_engine.engine.chat.escaping import Shield
from headrace_engine.engine.chat.template import ChatTemplate
from headrace_engine.errors import InvalidArgument

HELLO = ChatMessage("user", "Hello!")
TRIMMING = (
    "{{ bos_token }}{%- for message in messages %}[{{ message.role }}] {{ message.content | trim }}\n{% endfor -%}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
PARTS = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}<{{ part.type }}>{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)


def render(source: str, chat: Chat, variables: Mapping[str, str] | None = None) -> str:
    return ChatTemplate(source, variables or {"bos_token": "<s>"}).render(chat).text


def refused(source: str, chat: Chat, shield: Shield | None = None) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        ChatTemplate(source, {}).render(chat, shield)
    return caught.value
