"""A model's tokenizer: from text to ids, from ids to bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
"""Maximum bytes of text that become one token, if the token includes the spaces around it."""

LONG = 2_000
"""Minimum characters of a text that is encoded without the GIL: releasing it costs a switch of threads."""

_PROBES = (
    "",
    "a",
    " The 2nd wheel:\r\n\tit's ½ turned, caf\u00e9 \u6c34\u8eca \U0001f336\ufe0f\u200b </s>",
    "a b" * LONG,
)
"""Texts that every tokenizer must be able to encode: words, digits, spaces, signs, other scripts, and a long one."""

_COMPOSED = 4
"""Maximum bytes that a normalizer replaces by one: Unicode's compatibility forms."""


@dataclass(frozen=True, slots=True)
class TokenizerBundle:
    """A tokenizer, and the properties of its tokens in the model's files. Thread-safe.

    Attributes:
        plain: the same tokenizer for the continuation of a text, with names of special tokens as plain text.
        pieces: the bytes of each id.
        special_ids: ids of control tokens, such as the ends of turns.
        added_ids: these, and the ids of other texts that are matched before a text is split.
        special_texts: the texts of those ids, in the order of the ids.
        tool_template: separate chat template for chats with tools; None: one template for all chats.
        template_variables: texts that chat templates use by name, such as bos_token.
        bos_text: the token that begins a sequence; "" if there is none.
        adds_bos: `encode` prepends it when it adds special tokens.
        eos_ids: ids that end a request, according to any of the model's files.
        vocab_size: upper bound (exclusive) of the ids that both the tokenizer and the model have.
        holes: ids below it that one of them does not have.
        warnings: sentences about contradictions between the files.
        max_token_bytes: maximum bytes of a text that become one id.
        missing_bytes: bytes of text without an id; `encode` drops them, as the original tokenizer does.
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
        """Return the ids of a text. Names of special tokens in it become those tokens.

        A long text is encoded without the GIL.

        Args:
            add_special_tokens: add the tokens that the tokenizer puts before and after a text.

        Raises:
            InvalidArgument: the text contains an unpaired surrogate, or the tokenizer fails on it.
        """
        with guarded(_not_encoded):
            if len(text) <= LONG:
                return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
            # The library releases the GIL only for batches.
            return self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text that continues another, with names of special tokens as plain text.

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
        """Return the ids of a text that continues another. Names of special tokens in it become those tokens.

        Raises:
            InvalidArgument: as `encode`.
        """
        found = self._encode_aside(self.tokenizer, text)
        first = next((index for index, token_id in enumerate(found.ids) if token_id in self.added_ids), None)
        if first is None:
            return self.encode_plain(text)
        return [*self.encode_plain(text[: found.offsets[first][0]]), *found.ids[first:]]

    def check_known(self, ids: Sequence[int]) -> None:
        """Refuse ids for which the model has no row.

        Raises:
            InvalidArgument: naming the token.
        """
        absent = next((token_id for token_id in ids if token_id >= self.vocab_size or token_id in self.holes), None)
        if absent is not None:
            text = f"holds {shown(self.tokenizer.id_to_token(absent))}, which is token {absent} of the tokenizer alone"
            raise InvalidArgument.field("prompt", f"{text}: the model's ids are 0 to {self.vocab_size - 1}")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id, which may not be whole characters; b"" for an id without a piece."""
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""

    @staticmethod
    def _encode_aside(tokenizer: Tokenizer, text: str) -> Encoding:
        """Return an encoding with offsets, computed as a batch: only for batches the library releases the GIL."""
        with guarded(_not_encoded):
            if len(text) <= LONG:
                return tokenizer.encode(text, add_special_tokens=False)
            return tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def _plain_ids(self, part: str) -> list[int]:
        """Encode a text; character by character if it would become a special token that the vocabulary holds whole."""
        ids = [token.id for token in self.tokenizer.model.tokenize(part)]
        if self.special_ids.isdisjoint(ids) or len(part) == 1:
            return ids
        return [token_id for character in part for token_id in self._plain_ids(character)]


def load_tokenizer(files: ModelFiles) -> TokenizerBundle:
    """Load the tokenizer of a model.

    Raises:
        BadModel: it is missing, damaged, of an unsupported kind, or has ids that the model does not have.
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
    vocabulary: dict[str, int] = built.tokenizer.get_vocab(with_added_tokens=True)
    added = built.tokenizer.get_added_tokens_decoder()
    _check_vocabulary(files, built.tokenizer, set(vocabulary.values()) - added.keys())
    ids = ids_of(files, built, vocabulary)
    spelled = enumerate(piece_bytes(built.tokenizer, vocabulary, source))
    pieces = tuple(b"" if token_id in ids.holes else piece for token_id, piece in spelled)
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
    """Encode every kind of text once, to refuse a broken tokenizer at load time.

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


def _check_vocabulary(files: ModelFiles, tokenizer: Tokenizer, ids: Collection[int]) -> None:
    """Check that these ids, all but those of added tokens, have rows in the model; others may lie beyond."""
    size, last = files.spec.vocab_size, max(ids, default=-1)
    if last >= size:
        text = f"the tokenizer has {last + 1} ids (the last is {shown(tokenizer.id_to_token(last))})"
        raise BadModel(
            f"{files.tokenizer_path.name}: {text}, but the model only {size}: they belong to different models"
        )
