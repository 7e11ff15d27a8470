"""Templates of prompts."""

from __future__ import annotations

__all__ = ["PromptTemplate"]

_SYSTEM = "You are a helpful assistant."


class PromptTemplate:
    """Renders prompts without a tokenizer."""

    @staticmethod
    def apply_chatml_template(inputs: str) -> str:
        """Return a text as the question of a chat in ChatML, with the usual system message and the answer left open.

        The model's own chat template is better: pass messages to `headrace.Client.start_request`, or render them with
        `Tokenizer.apply_chat_template`. A text that is rendered with both has two templates around it.
        """
        turns = (("system", _SYSTEM), ("user", inputs))
        return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"
