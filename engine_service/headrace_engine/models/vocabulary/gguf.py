"""Build tokenizers from the vocabulary of a GGUF file."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_engine.errors import BadModel
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.loaders.gguf_header import read_header
from headrace_engine.models.vocabulary.built import BuiltTokenizer, set_ends
from headrace_engine.models.vocabulary.guarded import guarded, reason_of
from headrace_engine.models.vocabulary.splitting import SPLITTINGS, Splitting, pre_tokenizer

_SPACE = "\u2581"
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""Pieces that stand for the bytes of a character that has none of its own."""
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
"""Names of template variables, and the metadata keys of their ids, as spelled by the format."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of a GGUF file.

    Attributes:
        tokens: the pieces, by id.
        types: type of each piece: normal, control, user defined, unused, byte.
        named: text of the special tokens that have a role, by the name that chat templates use.
    """

    fields: ConfigFields
    tokens: Sequence[str]
    types: array[Any]
    named: Mapping[str, str]

    def of_type(self, *types: int) -> list[str]:
        """Return the pieces of the given types."""
        return [self.tokens[index] for index in self.ids_of(*types)]

    def ids_of(self, *types: int) -> list[int]:
        """Return the ids of the pieces of the given types."""
        import numpy as np

        found: list[int] = np.flatnonzero(np.isin(np.asarray(self.types), types)).tolist()
        return found


def build_tokenizer(path: Path) -> BuiltTokenizer:
    """Build the tokenizer of a GGUF file.

    Raises:
        BadModel: the vocabulary is missing, damaged or of an unsupported kind; names the key.
    """
    vocabulary = _read(path)
    kind = vocabulary.fields.text("model")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in builders:
        raise vocabulary.fields.error("model", f"is not supported; supported are {', '.join(builders)}")
    with guarded(lambda error: _unfitting(path, error)):
        tokenizer, adds_bos = builders[kind](vocabulary)
        _add_tokens(tokenizer, vocabulary)
        _set_ends(tokenizer, vocabulary, adds_bos)
    unused = frozenset(vocabulary.ids_of(_UNUSED))
    return BuiltTokenizer(tokenizer, vocabulary.named, unused, _guessed(vocabulary.fields))


def _unfitting(path: Path, error: BaseException) -> BadModel:
    return BadModel(f"{path.name}: its vocabulary and merges do not fit together: {reason_of(error)}")


def _read(path: Path) -> Vocabulary:
    metadata = read_header(path).metadata
    fields = ConfigFields(metadata, path.name, "tokenizer.ggml.")
    tokens = _strings(fields, "tokens")
    types = fields.get("token_type")
    if types is None:
        types = array("i", [1]) * len(tokens)
    if not isinstance(types, array) or len(types) != len(tokens):
        raise BadModel(f"{path.name}: tokenizer.ggml.token_type must have one entry for each of {len(tokens)} tokens")
    ids = {name: fields.get(key) for name, key in _NAMED.items()}
    last = len(tokens) - 1
    named = {
        name: tokens[fields.integer(_NAMED[name], minimum=0, maximum=last)]
        for name, token_id in ids.items()
        if token_id is not None
    }
    return Vocabulary(fields, tokens, types, named)


def _strings(fields: ConfigFields, name: str) -> list[str]:
    value = fields.get(name)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise BadModel(f"{fields.source}: {fields.prefix}{name} must be a list of strings")
    return value


def _byte_level(vocabulary: Vocabulary) -> tuple[Any, bool]:
    from tokenizers import Tokenizer, decoders, models, normalizers

    splitting = _splitting(vocabulary.fields)
    ids = {text: token_id for token_id, text in enumerate(vocabulary.tokens)}
    merges = _merges(vocabulary.fields)
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=splitting.takes_whole))
    if splitting.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(splitting)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, splitting.adds_bos


def _guessed(fields: ConfigFields) -> tuple[str, ...]:
    if fields.text("model") != "gpt2" or fields.get("pre") not in (None, "default"):
        return ()
    return (
        f"{fields.source}: {fields.prefix}pre does not name how texts are split: as GPT-2's are, which may be wrong",
    )


def _splitting(fields: ConfigFields) -> Splitting:
    name = fields.text("pre", "default")
    if name not in SPLITTINGS:
        raise fields.error("pre", f"is not supported; supported are {', '.join(SPLITTINGS)}")
    return SPLITTINGS[name]


def _sentencepiece(vocabulary: Vocabulary) -> tuple[Any, bool]:
    from tokenizers import Tokenizer, decoders, models, normalizers

    fields = vocabulary.fields
    ids = {text: token_id for token_id, text in enumerate(vocabulary.tokens)}
    unknown = vocabulary.named.get("unk_token")
    merges = _merges(fields) if fields.has("merges") else _merges_from_scores(vocabulary, ids, unknown)
    model = models.BPE(vocab=ids, merges=merges, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    tokenizer = Tokenizer(model)
    begins_with_space = fields.flag("add_space_prefix", True)
    spaces = normalizers.Replace(" ", _SPACE)
    # Prepended to the text and after each special token, even if a space is already there.
    prefixed = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
    tokenizer.normalizer = prefixed if begins_with_space else spaces
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if begins_with_space:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer, True


class _Merges(Sequence[tuple[str, str]]):
    """Merges that the library fetches one by one: it keeps Python's lock, which this gives to other threads.

    Args:
        left, right: the parts of each.
    """

    def __init__(self, left: Sequence[str], right: Sequence[str]) -> None:
        self._left, self._right = left, right

    def __len__(self) -> int:
        return len(self._left)

    def __getitem__(self, index: Any) -> Any:
        return self._left[index], self._right[index]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        # The lock is given away by a loop in Python alone, not by `yield from`.
        for pair in zip(self._left, self._right, strict=True):  # noqa: UP028
            yield pair


def _merges(fields: ConfigFields) -> _Merges:
    pairs = [merge.split(" ") for merge in _strings(fields, "merges")]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise BadModel(f"{fields.source}: {fields.prefix}merges holds {' '.join(wrong)!r}, which is not a pair")
    return _Merges([left for left, _ in pairs], [right for _, right in pairs])


def _merges_from_scores(vocabulary: Vocabulary, ids: Mapping[str, int], unknown: str | None) -> _Merges:
    import numpy as np

    from headrace_engine.models.vocabulary.score_merges import merges_from_scores

    scores = vocabulary.fields.get("scores")
    if not isinstance(scores, array) or len(scores) != len(vocabulary.tokens):
        raise vocabulary.fields.error("scores", "must have one entry for each token")
    joins = np.isin(np.asarray(vocabulary.types), (_UNKNOWN, _CONTROL, _UNUSED, _BYTE), invert=True)
    atoms = [ids[text] for text in (unknown or "", *_BYTES) if text in ids]
    return _Merges(*merges_from_scores(vocabulary.tokens, np.asarray(scores, np.float64), joins, atoms))


def _add_tokens(tokenizer: Any, vocabulary: Vocabulary) -> None:
    """Add control tokens and those with a role as special tokens; user-defined ones are only kept whole."""
    from tokenizers import AddedToken

    special = dict.fromkeys([*vocabulary.of_type(_CONTROL, _UNKNOWN), *vocabulary.named.values()])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special if text])
    whole = [text for text in vocabulary.of_type(_USER_DEFINED) if text and text not in special]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in whole])


def _set_ends(tokenizer: Any, vocabulary: Vocabulary, adds_bos: bool) -> None:
    fields = vocabulary.fields
    bos = vocabulary.named.get("bos_token") if fields.flag("add_bos_token", adds_bos) else None
    eos = vocabulary.named.get("eos_token") if fields.flag("add_eos_token", False) else None
    set_ends(tokenizer, bos, eos)
