"""Prefix affinity: which engine has probably computed the beginning of a prompt already.

The gateway sees prompts, not blocks: it keeps digests of the beginnings of prompts that it sent to an engine, in pieces
that are about as long as a block. What an engine holds is bounded by its KV pool, and so is what is kept of it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from headrace_proto.v1 import generation_pb2

IDS = 16
"""Ids of a piece, as a block has."""

TEXT_BYTES = 64
"""Bytes of text of a piece: about as many ids."""

MOST_PIECES = 4096
"""Pieces of one prompt that count; the rest follows them."""

MOST_KEPT = 50_000
"""Pieces that are kept of one engine, some 10 MB; the least recently used ones go first."""


def pieces(request: Any) -> list[bytes]:
    """Return the digests of the beginnings of a prompt, each of which includes all before it, shortest first.

    Args:
        request: a StartRequestRequest or GenerateRequest. Prompts of different models, salts, adapters or forms have no
            digest in common; nor do chats with different tools or variables.
    """
    form = request.WhichOneof("prompt")
    config = request.config
    if form is None or (config.HasField("use_prefix_cache") and not config.use_prefix_cache):
        return []
    base = repr((form, request.model_name, config.cache_salt, config.lora_name)).encode()
    if form == "chat":
        base += _surroundings(request.chat)
    found, digest = [], _digest(b"", base)
    for piece in _parts(request, form):
        digest = _digest(digest, piece)
        found.append(digest)
        if len(found) == MOST_PIECES:
            break
    return found


def _parts(request: Any, form: str) -> Iterator[bytes]:
    """Yield the full pieces of a prompt."""
    if form == "token_ids":
        ids = request.token_ids.ids
        for start in range(0, len(ids) - IDS + 1, IDS):
            yield repr(ids[start : start + IDS]).encode()
        return
    data = request.text.encode() if form == "text" else b"".join(map(_serialized, request.chat.messages))
    for start in range(0, len(data) - TEXT_BYTES + 1, TEXT_BYTES):
        yield data[start : start + TEXT_BYTES]


def _serialized(message: generation_pb2.ChatMessage) -> bytes:
    return message.SerializeToString(deterministic=True)


def _surroundings(chat: generation_pb2.Chat) -> bytes:
    """Return what of a chat may stand before its messages."""
    around = generation_pb2.Chat(tools=chat.tools, template_variables=chat.template_variables)
    return around.SerializeToString(deterministic=True)


def _digest(before: bytes, piece: bytes) -> bytes:
    return hashlib.blake2b(before + piece, digest_size=16).digest()


class Prefixes:
    """The beginnings of prompts that one engine has probably cached.

    Attributes:
        run: what the contents belong to: the engine's instance. Another run has computed nothing.
    """

    def __init__(self) -> None:
        self.run = ""
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def known(self, prompt: Sequence[bytes], run: str) -> int:
        """Return how many pieces of a prompt the engine has, from its beginning on."""
        if run != self.run:
            return 0
        return next((number for number, piece in enumerate(prompt) if piece not in self._held), len(prompt))

    def hold(self, prompt: Sequence[bytes], run: str, capacity: int) -> None:
        """Record that the engine computes a prompt.

        Args:
            prompt: digests of the prompt's beginnings.
            run: the engine's instance.
            capacity: ids that its KV pools hold; 0: unknown.
        """
        if run != self.run:
            self.run = run
            self._held.clear()
        for piece in reversed(prompt):  # The beginning was used last, as an engine evicts the tail of a prompt first.
            self._held[piece] = None
            self._held.move_to_end(piece)
        most = min(MOST_KEPT, capacity // IDS) if capacity else MOST_KEPT
        while len(self._held) > most:
            self._held.popitem(last=False)
