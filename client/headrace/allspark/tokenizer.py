"""The tokenizer of a model on an engine, with methods of Hugging Face's tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from headrace._base.refused_names import RefusedNames
from headrace._values.prompt import ChatMessages
from headrace.client import Client

_TOKENIZERS = "transformers.AutoTokenizer.from_pretrained reads the same files, where they can be read here"


class Tokenizer(RefusedNames):
    """The tokenizer of a model that is installed on an engine. Each call asks the engine.

    All methods raise NotFoundError if the model is not installed, and other errors of `headrace.Client.tokenize` and
    `detokenize`.

    Args:
        client: client of the engine.
        model_name: name of the model.
    """

    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("batch_decode", "tokenize", "convert_tokens_to_ids", "convert_ids_to_tokens", "get_vocab", "pad", "vocab_size",
         "eos_token", "eos_token_id", "bos_token", "bos_token_id", "pad_token", "pad_token_id", "padding_side"),
        _TOKENIZERS,
    )  # fmt: skip

    def __init__(self, client: Client, model_name: str) -> None:
        self._client = client
        self._model_name = model_name

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: the text.
            add_special_tokens: add what the tokenizer puts at begin and end; None: the tokenizer's own default.
        """
        return self._client.tokenize(self._model_name, text=text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int] | int, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids.

        Args:
            token_ids: a list, an array or tensor of shape (n,), or one id.
            skip_special_tokens: leave special tokens out.
        """
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._client.detokenize(self._model_name, ids, skip_special_tokens=skip_special_tokens).text

    def apply_chat_template(
        self,
        conversation: ChatMessages,
        tools: Sequence[Mapping[str, Any] | str] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **template_variables: Any,
    ) -> str | list[int]:
        """Return a chat as the model's template renders it, or its token ids.

        Args:
            conversation: messages, as in `headrace.Client.start_request`.
            tools: tools for the template, each a dict or JSON text.
            add_generation_prompt: open the assistant's answer.
            continue_final_message: leave the last message open.
            tokenize: return token ids.
            **template_variables: variables of the template, any values that JSON can hold.
        """
        chat = self._client.tokenize(
            self._model_name,
            messages=conversation,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_variables=template_variables or None,
        )
        return chat.ids if tokenize else chat.rendered_text
