"""Tokenizers of the two kinds that models use, built in memory."""

from __future__ import annotations

from functools import cache
from typing import Any

from headrace_engine.characters.detokenizer import Detokenizer
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.models.vocabulary.pieces import piece_bytes
from headrace_engine.models.vocabulary.plain import plain_tokenizer

from support.models.tiny_tokenizer import CHAT_TEMPLATE, tiny_tokenizer

SPACE = "\u2581"
BOS, EOS = 1, 2
_WORDS = ("Hello", "world", "é", "—", "a", "b", "ab", "<", ">", "|", ".", "你", "好")
_SENTENCEPIECE = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *_WORDS)


@cache
def byte_level() -> Any:
    """Return a byte-level BPE of 384 ids, of which 0, 1 and 2 are special."""
    return tiny_tokenizer()


@cache
def sentencepiece() -> Any:
    """Return a BPE with byte fallback, as of converted SentencePiece models: 0 to 2 are special, 3 to 258 are bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = {piece: number for number, piece in enumerate((*_SENTENCEPIECE, *(SPACE + w for w in _WORDS)))}
    merges = [("a", "b"), *((SPACE, word) for word in _WORDS)]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SENTENCEPIECE[:3]])
    tokenizer.post_processor = processors.TemplateProcessing(single=["<s>:0", "$A:0"], special_tokens=[("<s>", BOS)])
    return tokenizer


@cache
def pieces(tokenizer: Any) -> tuple[bytes, ...]:
    """Return the bytes of each id."""
    return piece_bytes(tokenizer, tokenizer.get_vocab(), "tokenizer.json")


def stream(tokenizer: Any, ids: list[int], *, skip: bool = True) -> list[str]:
    """Return the text that each id completes, then the rest that was held back."""
    skipped = frozenset({0, 1, 2}) if skip else frozenset()
    decoder = Detokenizer(pieces(tokenizer).__getitem__, skipped)
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


def bundle(tokenizer: Any, /, **changes: Any) -> TokenizerBundle:
    """Return one of these tokenizers as read from a model's files; changes replace fields."""
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    texts = tuple(token.content for _, token in added)
    spelled = pieces(tokenizer)
    values: dict[str, Any] = {
        "tokenizer": tokenizer,
        "plain": plain_tokenizer(tokenizer),
        "pieces": spelled,
        "special_ids": frozenset(token_id for token_id, _ in added),
        "added_ids": frozenset(token_id for token_id, _ in added),
        "special_texts": texts,
        "chat_template": CHAT_TEMPLATE,
        "template_variables": {"bos_token": texts[BOS], "eos_token": texts[EOS]},
        "bos_id": BOS,
        "bos_text": texts[BOS],
        "adds_bos": tokenizer.encode("", add_special_tokens=True).ids == [BOS],
        "max_token_bytes": max(map(len, spelled)),
    }
    return TokenizerBundle(**values | changes)
