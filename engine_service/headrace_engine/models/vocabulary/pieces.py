"""The bytes of each id of a tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

from headrace_engine.errors import BadModel

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"

MOST_IDS = 2**22
"""Maximum number of ids: more than any vocabulary has."""

_UTF8_BYTES = frozenset(range(0xF5)) - {0xC0, 0xC1}


@cache
def byte_characters() -> Mapping[str, int]:
    """Return the byte of each character of a byte-level vocabulary: printable bytes represent themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    shifted = {chr(256 + number): byte for number, byte in enumerate(others)}
    return {**{chr(byte): byte for byte in plain}, **shifted}


def piece_bytes(tokenizer: Any, vocabulary: Mapping[str, int], source: str) -> tuple[bytes, ...]:
    """Return the bytes of every id of a tokenizers.Tokenizer, in the order of ids; b"" for an id without a piece.

    Args:
        vocabulary: its ids by piece, added tokens among them.

    Raises:
        BadModel: its decoder does not map pieces to bytes, or it has no ids or too large ones.
    """
    spell = _speller(tokenizer, source)
    largest = max(vocabulary.values(), default=-1)
    if not 0 <= largest < MOST_IDS:
        found = "none" if largest < 0 else f"one of {largest}"
        raise BadModel(f"{source}: the tokenizer must have ids, all below {MOST_IDS}; it has {found}")
    pieces = [b""] * (largest + 1)
    for piece, token_id in vocabulary.items():
        pieces[token_id] = spell(piece)
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        pieces[token_id] = token.content.encode()
    return tuple(pieces)


def missing_bytes(tokenizer: Any, pieces: Collection[bytes]) -> frozenset[int]:
    """Return the bytes of UTF-8 for which a byte-level tokenizer has no id: it drops them from texts."""
    if tokenizer.decoder is None or b"ByteLevel" not in tokenizer.decoder.__getstate__():
        return frozenset()
    return frozenset(byte for byte in _UTF8_BYTES if bytes([byte]) not in pieces)


def _speller(tokenizer: Any, source: str) -> Callable[[str], bytes]:
    state = tokenizer.decoder.__getstate__() if tokenizer.decoder is not None else b"{}"
    kinds = _kinds(json.loads(state))
    if "ByteLevel" in kinds:
        return _from_byte_characters
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _from_sentencepiece
    found = ", ".join(sorted(kinds)) or "none"
    raise BadModel(
        f"{source}: tokenizers with decoder {found} are not supported; supported are ByteLevel, ByteFallback"
    )


def _kinds(decoder: Mapping[str, Any]) -> set[str]:
    parts = decoder.get("decoders", [])
    return {kind for part in parts for kind in _kinds(part)} | ({decoder["type"]} if "type" in decoder else set())


def _from_byte_characters(piece: str) -> bytes:
    """Decode a piece; one with a character that represents no byte is plain text."""
    byte_of = byte_characters()
    try:
        return bytes([byte_of[character] for character in piece])
    except KeyError:
        return piece.encode()


def _from_sentencepiece(piece: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(_SPACE, " ").encode()
