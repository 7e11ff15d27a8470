"""The ids of a text in pieces, of which some are nothing but text."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_engine.models.tokenizer import TokenizerBundle


def encode_pieces(bundle: TokenizerBundle, pieces: Iterable[tuple[str, bool]]) -> list[int]:
    """The ids of a text in pieces; True: names of special tokens in it are just text.

    Some tokenizers put a space before a text, and some put another behind each special token: they do so where a piece
    begins there, and not where it goes on.
    """
    ids: list[int] = []
    for piece, is_plain in pieces:
        ids += _ids(bundle, piece, is_plain, ids[-1] if ids else None)
    return ids


def _ids(bundle: TokenizerBundle, piece: str, is_plain: bool, before: int | None) -> list[int]:
    """The ids of a piece behind an id; None: it begins the text."""
    begins = before is None or before in bundle.added_ids
    if not begins:
        return bundle.encode_plain(piece) if is_plain else bundle.encode_rest(piece)
    anchor = "" if before is None else bundle.token_bytes(before).decode()
    if not is_plain:
        return bundle.encode(anchor + piece, add_special_tokens=False)[len(anchor) > 0 :]
    return bundle.encode_plain(f"{_space(bundle, anchor, piece)}{piece}")


def _space(bundle: TokenizerBundle, anchor: str, piece: str) -> str:
    """The space that the tokenizer puts between an anchor and a piece."""
    sample = f"{piece[:1] if piece[:1].isspace() else ''}a"
    ids = bundle.encode(anchor + sample, add_special_tokens=False)[len(anchor) > 0 :]
    spelled = b"".join(map(bundle.token_bytes, ids)).decode(errors="replace")
    return " " if spelled == f" {sample}" else ""
