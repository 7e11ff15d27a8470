"""What SmolLM2 is asked: about a long text, and turn by turn."""

from __future__ import annotations

from pathlib import Path

from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import load_tokenizer
from support.models.text_accuracy import TEXT

_SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"

QUESTIONS = (
    "What is the channel called, and what is it for?",
    "How many floors does the mill have, and what stands at the upper end of the channel?",
    "Who looks after the mill today, and when can it be seen?",
    "Sum up the text in three sentences.",
)
TALKS = (
    (
        "My name is Ada and I bake bread. What should I know about flour?",
        "Which of these matters most for a loaf of rye?",
        "How long should the dough rest?",
        "And how hot should the oven be?",
        "What was my name, and what do I do?",
    ),
    (
        "Tell me about rivers.",
        "Why do they bend?",
        "What is a weir?",
        "Could one build a mill there?",
        "Write a short poem about what we talked about.",
    ),
)
"""Messages of the user at each turn."""


def conversations(path: Path) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
    """Return the ids of the messages of each turn: about the text, and in talks."""
    tokenizer = load_tokenizer(open_model(str(path))).tokenizer
    text = TEXT.read_text("utf-8")

    def ids(words: str, number: int) -> list[int]:
        before = "<|im_end|>\n" if number else _SYSTEM
        whole = f"{before}<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n"
        return list(tokenizer.encode(whole, add_special_tokens=False).ids)

    long = [[ids(f"{text}\n\n{question}", 0)] for question in QUESTIONS]
    return long, [[ids(words, number) for number, words in enumerate(talk)] for talk in TALKS]
