"""What an engine knows of the answer to a chat: its formats, and the special tokens that stay in its text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_engine.chat_types import Chat, ChatMessage, ToolChoice, ToolChoiceMode
from headrace_engine.engine.text.answers import Answers
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from support.models.tiny_models import make_tiny_llama

CHAT = Chat((ChatMessage("user", "Hello"),), tools=('{"function": {"name": "f"}}',), tool_choice=ToolChoice())
SPECIALS = ("<|eot|>", "[TOOL_CALLS]", "[ARGS]", "<think>", "<|channel|>", "<|message|>")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> TokenizerBundle:
    """A tiny tokenizer, of which some ids are the special tokens of several models."""
    found = load_tokenizer(open_model(str(make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny"))))
    return replace(found, special_ids=frozenset(range(len(SPECIALS))), special_texts=SPECIALS)


def kept(answers: Answers, chat: Chat) -> set[str]:
    """The special tokens that stay in the text of the answer."""
    return {SPECIALS[token_id] for token_id in answers.of(answers.shown(chat), "prompt").kept}


def test_marks_of_calls_and_thoughts_stay_in_the_text(bundle: TokenizerBundle) -> None:
    answers = Answers(bundle, "[TOOL_CALLS] and <think>", None)
    assert kept(answers, CHAT) == {"[TOOL_CALLS]", "[ARGS]", "<think>"}
    assert kept(answers, replace(CHAT, keep_marks=False)) == set()
    assert kept(answers, Chat(CHAT.messages)) == set()
    assert kept(answers, Chat(CHAT.messages, keep_marks=True)) == {"<think>"}


def test_channels_part_every_answer_of_their_model(bundle: TokenizerBundle) -> None:
    answers = Answers(bundle, "<|start|><|channel|><|message|>", None)
    found = answers.of(Chat(CHAT.messages, keep_marks=True), "prompt")
    assert found.format is not None
    assert found.format.calls == "harmony"
    assert {"<|channel|>", "<|message|>"} <= {SPECIALS[token_id] for token_id in found.kept}


def test_chats_with_tools_have_a_template_of_their_own(bundle: TokenizerBundle) -> None:
    answers = Answers(bundle, "plain", "<tool_call>")
    found = answers.of(CHAT, "prompt ends with <think>\n").format
    assert found is not None
    assert (found.calls, found.thought_open) == ("hermes", True)


def test_what_no_format_is_known_for_cannot_be_enforced(bundle: TokenizerBundle) -> None:
    answers = Answers(bundle, "plain", None)
    chat = replace(CHAT, tool_choice=ToolChoice(ToolChoiceMode.REQUIRED))
    with pytest.raises(InvalidArgument, match="name one in tool_format"):
        answers.of(chat, "prompt")
    assert answers.of(CHAT, "prompt").wanted is None
