"""Details of tokens that configs request beside ids and text: logprobs and vectors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The most likely ids for consecutive tokens, flattened: `count` per token, most likely first."""

    count: int
    ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class TokenTensors:
    """Vectors of consecutive tokens, each [tokens, size] as little-endian float32.

    Attributes:
        size: the model's hidden size.
        inputs_embedding: the embedding of the id before each token, which the model read to sample the token.
        hidden_states: the last hidden state for it, after the final norm; times the head, it gives the logits that the
            token was sampled from.
    """

    size: int
    inputs_embedding: bytes
    hidden_states: bytes


@dataclass(frozen=True, slots=True)
class TokenDetails:
    """Details of consecutive tokens beyond ids and text, as requested by the config."""

    token_logprobs: list[float] | None = None
    top_logprobs: TopLogprobs | None = None
    tensors: TokenTensors | None = None


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of consecutive tokens of a prompt.

    Attributes:
        position: index of the first token in the prompt, at least 1.
        token_ids: the tokens.
        token_logprobs: the logprob of each token.
        top_logprobs: the most likely ids at the position of each, if the config requested any.
    """

    position: int
    token_ids: list[int]
    token_logprobs: list[float]
    top_logprobs: TopLogprobs | None = None
