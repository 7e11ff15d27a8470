"""A model's tokenizer: text to ids, ids to the bytes that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace_engine.config import ModelFormat
from headrace_engine.errors import BadModel, InvalidArgument, shown
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.vocabulary import gguf, huggingface
from headrace_engine.models.vocabulary.built import BuiltTokenizer
from headrace_engine.models.vocabulary.guarded import guarded, reason_of
from headrace_engine.models.vocabulary.ids import ids_of
from headrace_engine.models.vocabulary.pieces import missing_bytes, piece_bytes
from headrace_engine.models.vocabulary.plain import plain_tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_ANY_LENGTH = 2**20
"""Bytes of text that one token may take in where it swallows the spaces beside it."""

LONG = 2_000
"""Characters from which a text is encoded with Python's lock released: that costs a hand-over between threads."""

_PROBES = (
    "",
    "a",
    " The 2nd wheel:\r\n\tit's ½ turned, caf\u00e9 \u6c34\u8eca \U0001f336\ufe0f\u200b </s>",
    "a b" * LONG,
)
"""Texts that every tokenizer has to encode: words, digits, spaces, signs, other scripts, and a long one."""

_COMPOSED = 4
"""A normalizer may replace this many bytes by one: Unicode's compatibility forms, at most."""


@dataclass(frozen=True, slots=True)
class TokenizerBundle:
    """A tokenizer, and what the model's files say about its tokens. Safe to use from several threads.

    Attributes:
        plain: the same for what goes on within a text, where names of special tokens are just text.
        pieces: the bytes that each id stands for, by id.
        special_ids: ids of control tokens, such as the ends of turns.
        added_ids: these, and those of other texts that are found before a text is split.
        special_texts: what those ids are written as, in the order of the ids.
        tool_template: a chat template of its own for chats that bring tools; None: there is one for all.
        template_variables: texts that chat templates use by name, such as bos_token.
        bos_text: the token that begins a sequence; "" where there is none.
        adds_bos: encode puts it before a text when it adds special tokens.
        eos_ids: ids that end a request, by any of the model's files.
        vocab_size: ids that both the tokenizer and the model have are below it.
        holes: ids below it that one of them does not have.
        warnings: sentences about what the files do not agree on.
        max_token_bytes: no id takes in more bytes of a text than this.
        missing_bytes: bytes that a text may hold and no id spells; like the original tokenizer, encode leaves them out.
    """

    tokenizer: Tokenizer = field(repr=False)
    plain: Tokenizer = field(repr=False)
    pieces: tuple[bytes, ...] = field(repr=False)
    special_ids: frozenset[int]
    added_ids: frozenset[int]
    special_texts: tuple[str, ...]
    chat_template: str | None
    template_variables: Mapping[str, str]
    bos_id: int | None
    bos_text: str
    adds_bos: bool
    max_token_bytes: int
    missing_bytes: frozenset[int] = frozenset()
    tool_template: str | None = None
    eos_ids: tuple[int, ...] = ()
    vocab_size: int = 0
    holes: frozenset[int] = frozenset()
    warnings: tuple[str, ...] = ()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text. Names of special tokens inside it become those tokens.

        Other threads go on while a long text is encoded.

        Args:
            add_special_tokens: put before and after what the tokenizer adds by itself.

        Raises:
            InvalidArgument: the text holds half a surrogate pair, which is no character, or the tokenizer fails on it.
        """
        with guarded(_not_encoded):
            if len(text) <= LONG:
                return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
            # The library keeps the lock for one text, and releases it for a batch.
            return self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_plain(self, text: str) -> list[int]:
        """The ids of a text that goes on where another ended, and in which names of special tokens are just text.

        Raises:
            InvalidArgument: as `encode`.
        """
        ids = self._encode_aside(self.plain, text).ids
        if self.special_ids.isdisjoint(ids):
            return ids
        with guarded(_not_encoded):
            return self._encode_parts(text)

    def _encode_parts(self, text: str) -> list[int]:
        plain = self.plain
        normal = plain.normalizer.normalize_str(text) if plain.normalizer else text
        parts = [part for part, _ in plain.pre_tokenizer.pre_tokenize_str(normal)] if plain.pre_tokenizer else [normal]
        return [token_id for part in parts for token_id in self._plain_ids(part)]

    def encode_rest(self, text: str) -> list[int]:
        """The ids of a text that goes on where another ended. Names of special tokens inside it become those tokens.

        Raises:
            InvalidArgument: as `encode`.
        """
        found = self._encode_aside(self.tokenizer, text)
        first = next((place for place, token_id in enumerate(found.ids) if token_id in self.added_ids), None)
        if first is None:
            return self.encode_plain(text)
        return [*self.encode_plain(text[: found.offsets[first][0]]), *found.ids[first:]]

    def check_known(self, ids: Sequence[int]) -> None:
        """Refuse the ids of a text where the model has no row for one of them.

        Raises:
            InvalidArgument: naming the token.
        """
        absent = next((token_id for token_id in ids if token_id >= self.vocab_size or token_id in self.holes), None)
        if absent is not None:
            text = f"holds {shown(self.tokenizer.id_to_token(absent))}, which is token {absent} of the tokenizer alone"
            raise InvalidArgument.field("prompt", f"{text}: the model's ids are 0 to {self.vocab_size - 1}")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that an id stands for, not always whole characters; b"" for an id that has no piece."""
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""

    @staticmethod
    def _encode_aside(tokenizer: Tokenizer, text: str) -> Encoding:
        """An encoding with its offsets. The library keeps Python's lock for one text, and releases it for a batch."""
        with guarded(_not_encoded):
            if len(text) <= LONG:
                return tokenizer.encode(text, add_special_tokens=False)
            return tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def _plain_ids(self, part: str) -> list[int]:
        """A vocabulary may hold the name of a special token as a whole: then character by character."""
        ids = [token.id for token in self.tokenizer.model.tokenize(part)]
        if self.special_ids.isdisjoint(ids) or len(part) == 1:
            return ids
        return [token_id for character in part for token_id in self._plain_ids(character)]


def load_tokenizer(files: ModelFiles) -> TokenizerBundle:
    """The tokenizer of a model.

    Raises:
        BadModel: it is absent, damaged, of a kind that is not supported, or has ids that the model does not have.
    """
    builder = gguf if files.format is ModelFormat.GGUF else huggingface
    source = files.tokenizer_path.name
    try:
        built = builder.build_tokenizer(files.tokenizer_path)
    except ImportError as error:
        raise BadModel(f"{source}: reading its tokenizer needs the package tokenizers: {error}") from error
    with guarded(lambda error: BadModel(f"{source}: its tokenizer cannot be read: {reason_of(error)}")):
        bundle = _bundle(files, built, source)
    _probe(bundle, source)
    return bundle


def _bundle(files: ModelFiles, built: BuiltTokenizer, source: str) -> TokenizerBundle:
    _check_vocabulary(files, built.tokenizer)
    ids = ids_of(files, built)
    spelled = enumerate(piece_bytes(built.tokenizer, source))
    pieces = tuple(b"" if token_id in ids.holes else piece for token_id, piece in spelled)
    added = built.tokenizer.get_added_tokens_decoder()
    special = {token_id: token.content for token_id, token in sorted(added.items()) if token.special}
    bos_text = built.named.get("bos_token", "")
    bos_id = built.tokenizer.token_to_id(bos_text) if bos_text else None
    return TokenizerBundle(
        tokenizer=built.tokenizer,
        plain=plain_tokenizer(built.tokenizer),
        pieces=pieces,
        special_ids=frozenset(special),
        added_ids=frozenset(added),
        special_texts=tuple(special.values()),
        chat_template=files.chat_template,
        template_variables=built.named,
        bos_id=bos_id,
        bos_text=bos_text,
        adds_bos=bos_id is not None and built.tokenizer.encode("", add_special_tokens=True).ids[:1] == [bos_id],
        max_token_bytes=_max_token_bytes(built.tokenizer, pieces),
        missing_bytes=missing_bytes(built.tokenizer, frozenset(pieces)),
        tool_template=files.tool_template,
        eos_ids=ids.ends,
        vocab_size=ids.size,
        holes=ids.holes,
        warnings=ids.warnings,
    )


def _probe(bundle: TokenizerBundle, source: str) -> None:
    """Encode every kind of text once: a tokenizer that cannot has no use.

    Raises:
        BadModel: it fails on one of them.
    """
    for text in _PROBES:
        try:
            bundle.encode(text)
            bundle.encode_rest(text)
        except InvalidArgument as error:
            raise BadModel(f"{source}: its tokenizer cannot encode {text[:20]!r}: {error.message}") from error


def _not_encoded(error: BaseException) -> InvalidArgument:
    if isinstance(error, TypeError):
        return InvalidArgument.field("prompt", "is not valid Unicode: it holds half a surrogate pair")
    return InvalidArgument.field("prompt", f"cannot be encoded by the model's tokenizer: {reason_of(error)}")


def _max_token_bytes(tokenizer: Tokenizer, pieces: tuple[bytes, ...]) -> int:
    if any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values()):
        return _ANY_LENGTH
    return max(map(len, pieces)) * (_COMPOSED if tokenizer.normalizer else 1)


def _check_vocabulary(files: ModelFiles, tokenizer: Tokenizer) -> None:
    """Tokens that were added may lie beyond the model's rows, those of the vocabulary may not."""
    size, vocabulary = files.spec.vocab_size, tokenizer.get_vocab(with_added_tokens=False)
    added = tokenizer.get_added_tokens_decoder()
    last = max((token_id for token_id in vocabulary.values() if token_id not in added), default=-1)
    if last >= size:
        text = f"the tokenizer has {last + 1} ids (the last is {shown(tokenizer.id_to_token(last))})"
        raise BadModel(
            f"{files.tokenizer_path.name}: {text}, but the model only {size}: they belong to different models"
        )
