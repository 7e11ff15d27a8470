"""Tokenization of a text in pieces, some of which must not be parsed for special tokens."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_engine.models.tokenizer import TokenizerBundle


def encode_pieces(bundle: TokenizerBundle, pieces: Iterable[tuple[str, bool]]) -> list[int]:
    """Return the ids of a text in pieces; True: names of special tokens in the piece are plain text.

    Some tokenizers add a space at the start of a text, and some after each special token. Pieces get it there as well,
    and not where they continue a text.
    """
    ids: list[int] = []
    for piece, is_plain in pieces:
        ids += _ids(bundle, piece, is_plain, ids[-1] if ids else None)
    return ids


def _ids(bundle: TokenizerBundle, piece: str, is_plain: bool, before: int | None) -> list[int]:
    """Return the ids of a piece after an id; None: it starts the text."""
    begins = before is None or before in bundle.added_ids
    if not begins:
        return bundle.encode_plain(piece) if is_plain else bundle.encode_rest(piece)
    anchor = "" if before is None else bundle.token_bytes(before).decode()
    if not is_plain:
        return bundle.encode(anchor + piece, add_special_tokens=False)[len(anchor) > 0 :]
    return bundle.encode_plain(f"{_space(bundle, anchor, piece)}{piece}")


def _space(bundle: TokenizerBundle, anchor: str, piece: str) -> str:
    """Return the space that the tokenizer adds between an anchor and a piece."""
    sample = f"{piece[:1] if piece[:1].isspace() else ''}a"
    ids = bundle.encode(anchor + sample, add_special_tokens=False)[len(anchor) > 0 :]
    spelled = b"".join(map(bundle.token_bytes, ids)).decode(errors="replace")
    return " " if spelled == f" {sample}" else ""
