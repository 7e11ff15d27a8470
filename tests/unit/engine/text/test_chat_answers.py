"""What an engine knows of the answer to a chat: its formats, and the special tokens that stay in its text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_engine.chat_types import AnswerFormat, Chat, ChatMessage, ToolChoice, ToolChoiceMode
from headrace_engine.engine.text.answers import Answers, in_format
from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.calls.wanted import WantedCalls
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from support.models.tiny_models import make_tiny_llama

CHAT = Chat((ChatMessage("user", "Hello"),), tools=('{"function": {"name": "f"}}',), tool_choice=ToolChoice())
SPECIALS = ("<|eot|>", "[TOOL_CALLS]", "[ARGS]", "<think>", "<|channel|>", "<|message|>", "<|return|>")


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


@pytest.mark.parametrize("kind", [kind for kind in ResponseFormatKind if kind is not ResponseFormatKind.CALLS])
def test_a_response_format_goes_on_with_no_thought(bundle: TokenizerBundle, kind: ResponseFormatKind) -> None:
    """It holds from the first token on, but for structural tags, which have free text."""
    answers = Answers(bundle, "[TOOL_CALLS] and <think>", None)
    found = answers.of(Chat(CHAT.messages, keep_marks=True), "prompt ends with <think>\n")
    held = in_format(found, ResponseFormat(kind), None).format
    assert found.format is not None
    assert held == replace(found.format, thought_open=kind is ResponseFormatKind.STRUCTURAL_TAG)
    assert in_format(found, None, None) == found


def test_an_end_that_is_a_mark_is_no_part_of_a_format(bundle: TokenizerBundle) -> None:
    found = Answers(bundle, "<|start|><|channel|><|message|>", None).of(Chat(CHAT.messages, keep_marks=True), "prompt")
    end = SPECIALS.index("<|return|>")
    assert end in in_format(found, None, None, [end]).kept
    for kind in (ResponseFormatKind.JSON_OBJECT, ResponseFormatKind.REGEX):
        assert in_format(found, ResponseFormat(kind, "{}"), None, [end]).kept == found.kept - {end}


@pytest.mark.parametrize("kind", [ResponseFormatKind.JSON_OBJECT, ResponseFormatKind.JSON_SCHEMA])
def test_calls_may_come_instead_of_json(bundle: TokenizerBundle, kind: ResponseFormatKind) -> None:
    answers = Answers(bundle, "[TOOL_CALLS] and <think>", None)
    requested = ResponseFormat(kind, '{"type": "object"}')
    for choice in (ToolChoice(), ToolChoice(names=("f",)), ToolChoice(strict=("f",), parallel=False), None):
        chat = replace(CHAT, tool_choice=choice, keep_marks=True)
        found = in_format(answers.of(chat, "prompt ends with <think>\n"), requested, chat)
        assert found.format == AnswerFormat("mistral", "think", thought_open=False, or_json=True)
        assert found.wanted is not None
        wanted = WantedCalls.of(found.wanted)
        assert (wanted.schema, wanted.required, wanted.opened) == (requested.schema, False, False)
        chosen = choice or ToolChoice()
        assert (wanted.names, wanted.strict, wanted.parallel) == (chosen.names, chosen.strict, chosen.parallel)


def test_where_calls_must_come_json_has_no_effect(bundle: TokenizerBundle) -> None:
    answers = Answers(bundle, "[TOOL_CALLS] and <think>", None)
    chat = replace(CHAT, tool_choice=ToolChoice(ToolChoiceMode.REQUIRED))
    found = answers.of(chat, "prompt ends with <think>\n")
    assert in_format(found, ResponseFormat(ResponseFormatKind.JSON_OBJECT), chat) == found


def test_json_comes_alone_where_calls_are_not_parted(bundle: TokenizerBundle) -> None:
    answers = Answers(bundle, "[TOOL_CALLS] and <think>", None)
    for chat in (
        replace(CHAT, tool_choice=ToolChoice(ToolChoiceMode.NONE)),
        replace(CHAT, tool_choice=None),
        replace(CHAT, keep_marks=False),
    ):
        found = answers.of(answers.shown(chat), "prompt")
        assert in_format(found, ResponseFormat(ResponseFormatKind.JSON_OBJECT), chat).wanted is None
    assert in_format(answers.of(CHAT, "prompt"), ResponseFormat(ResponseFormatKind.REGEX, "a"), CHAT).wanted is None


def test_calls_without_marks_cannot_be_told_from_json(bundle: TokenizerBundle) -> None:
    answers = Answers(bundle, "[TOOL_CALLS] and <think>", None)
    chat = replace(CHAT, tool_choice=ToolChoice(strict=("f",)), keep_marks=False)
    with pytest.raises(InvalidArgument, match=r"^chat\.keep_marks is false, without which calls cannot be told"):
        in_format(answers.of(chat, "prompt"), ResponseFormat(ResponseFormatKind.JSON_OBJECT), chat)


def test_channels_without_tools_may_be_json(bundle: TokenizerBundle) -> None:
    answers = Answers(bundle, "<|start|><|channel|><|message|>", None)
    chat = Chat(CHAT.messages, keep_marks=True)
    found = answers.of(chat, "prompt")
    assert in_format(found, ResponseFormat(ResponseFormatKind.JSON_OBJECT), chat).format == found.format
