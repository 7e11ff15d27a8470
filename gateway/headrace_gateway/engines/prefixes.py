"""Prefix affinity: which engine has computed the beginning of a prompt already.

The gateway sees prompts, not blocks: it takes digests of their beginnings, in pieces that are about as long as a block.
Engines that send cache events have the blocks that they say; which those of a prompt are, engines said when the same
beginning was started before (`PromptKeys`). What was sent to an engine just now is not in its events yet, and other
engines send none: of each engine, the pieces of prompts that were sent there are kept (`Prefixes`). What an engine
holds is bounded by its KV pool, and so is what is kept of it.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

from headrace_proto.v1 import generation_pb2

KEY_BYTES = 16
"""Bytes of a block's key."""

IDS = 16
"""Ids of a piece, as a block has."""

TEXT_BYTES = 64
"""Bytes of text of a piece: about as many ids."""

MOST_PIECES = 4096
"""Pieces of one prompt that count; the rest follows them."""

MOST_KEPT = 50_000
"""Pieces that are kept of one engine, some 10 MB; the least recently used ones go first."""

MOST_KEYS = 100_000
"""Pieces whose blocks' keys are kept, some 25 MB; the least recently used ones go first."""

RECENT_SECONDS = 10.0
"""Seconds for which a prompt that was sent to an engine counts as cached there, though no event says so yet."""


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

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.run = ""
        self._now = now
        self._held: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def known(self, prompt: Sequence[bytes], run: str, seconds: float = inf) -> int:
        """Return how many pieces of a prompt the engine was sent in the last seconds, from its beginning on."""
        if run != self.run:
            return 0
        since, never = self._now() - seconds, -inf
        late = (number for number, piece in enumerate(prompt) if self._held.get(piece, never) <= since)
        return next(late, len(prompt))

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
            self._held[piece] = self._now()
            self._held.move_to_end(piece)
        most = min(MOST_KEPT, capacity // IDS) if capacity else MOST_KEPT
        while len(self._held) > most:
            self._held.popitem(last=False)


class PromptKeys:
    """The keys of blocks up to which pieces of prompts reach, as engines returned them when prompts were started."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, prompt: Sequence[bytes]) -> list[bytes]:
        """Return the key of each piece of a prompt, from its beginning to the last one known; empty where unknown."""
        keys = [self._keys.get(piece, b"") for piece in prompt]
        while keys and not keys[-1]:
            keys.pop()
        return keys

    def learn(self, prompt: Sequence[bytes], keys: bytes) -> None:
        """Record the keys of a prompt's full blocks, one after the other.

        Where the pieces are not as long as blocks, a piece reaches as far into the blocks as into the pieces.
        """
        blocks = len(keys) // KEY_BYTES
        for number in range(len(prompt), 0, -1):
            if (end := number * blocks // len(prompt) * KEY_BYTES) > 0:
                self._keys[prompt[number - 1]] = keys[end - KEY_BYTES : end]
                self._keys.move_to_end(prompt[number - 1])
        while len(self._keys) > MOST_KEYS:
            self._keys.popitem(last=False)
