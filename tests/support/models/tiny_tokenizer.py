r"""The tokenizer of tiny models: a byte-level BPE of 384 ids with Llama 3's splitting.

Emoji and CJK split into bytes, and merged ids such as "?\n" cross a line end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.models.json_files import write_json

VOCAB_SIZE = 384
ENDOFTEXT, IM_START, IM_END = 0, 1, 2
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_WORDS = (
    "?\n", ".\n", "!\n", "\n\n", " the", " and", " of", " is", " to", " in", " that", " water", " wheel",
    "Hello", " world", "The", "What", " city", " France", "user", "assistant", "system", " hear", "def", " return",
    " why", "123", "..", "  ", "é", " stop", " blue", " sky", " river", " engine", " model", " batch", "Why",
    "How", " you", " are", " lamp",
)  # fmt: skip


def make_tiny_tokenizer(path: Path | str) -> Path:
    """Write only the tokenizer's files to directory `path`."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer().save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[IM_START],
        "eos_token": SPECIAL_TOKENS[IM_END],
        "pad_token": SPECIAL_TOKENS[ENDOFTEXT],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    write_json(path / "tokenizer_config.json", config)
    return path


def tiny_tokenizer() -> Any:
    """Return the byte-level BPE as a tokenizers.Tokenizer."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    vocab, merges = tiny_vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    return tokenizer


def tiny_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the pieces with their ids, in the order special, bytes, merged, and the merges."""
    byte_chars = _byte_chars()
    merges = _merges(byte_chars)[: VOCAB_SIZE - len(SPECIAL_TOKENS) - 256]
    pieces = [*SPECIAL_TOKENS, *byte_chars, *(left + right for left, right in merges)]
    assert len(pieces) == len(set(pieces)) == VOCAB_SIZE
    return {piece: index for index, piece in enumerate(pieces)}, merges


def _byte_chars() -> list[str]:
    """Return the printable character that represents each byte, 0 to 255, in byte-level BPE."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(shifted)) for byte in range(256)]


def _merges(byte_chars: list[str]) -> list[tuple[str, str]]:
    """Return merges of every word from left to right; a pair that two words share appears once."""
    return list(dict.fromkeys(pair for word in _WORDS for pair in _chain([byte_chars[b] for b in word.encode()])))


def _chain(chars: list[str]) -> Iterator[tuple[str, str]]:
    for end in range(1, len(chars)):
        yield "".join(chars[:end]), chars[end]
