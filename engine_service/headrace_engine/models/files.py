"""A model on disk: its tensors by canonical name, and the other contents of its files.

Canonical names are `embed`, `final_norm`, `head` (absent where the head is tied), and for layer i `layers.{i}.` with
`input_norm`, `q`, `k`, `v`, `o`, `post_norm`, `gate`, `up`, `down`; a bias has the name of its matrix and `_bias`. Some
have norms of queries and keys, `q_norm` and `k_norm`, or of what attention and MLP add, `attention_out_norm` and
`mlp_out_norm`. Layers with experts have `router`, and for expert e `experts.{e}.` with `gate`, `up`, `down` instead of
those three; an expert of all tokens is `shared_gate`, `shared_up` and `shared_down`, and its score `shared_score`;
`router_correction` is added to the scores by which experts are chosen. With latent attention, `latent` makes the
vector that `k` and `v` are multiplied by, `k_shared` what rotates of the keys, and `k_spread` puts that into every
head; queries may have a vector of their own, made by `q_latent`. The norms are `latent_norm` and `q_latent_norm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from headrace_engine.config import ModelFormat
from headrace_engine.errors import BadModel
from headrace_engine.models.quantized_rows import quantized_type
from headrace_engine.models.spec import DecoderSpec

FLOATS = ("F64", "F32", "F16", "BF16")
"""Storage types of numbers in Hugging Face files."""

BEYOND_FLOAT16 = "holds values that FLOAT16 does not; use dtype BFLOAT16 or FLOAT32"
NOT_FINITE = "holds values that are not finite, and cannot be quantised"
"""Error that only a tensor's values show; see StoredTensor.error."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """The crc32 of some bytes of a file."""

    offset: int
    nbytes: int
    crc32: int


GROUPED = "GROUPED"
"""Layout of rows whose tensor holds others between them: `height` rows of each `group` rows."""
PLACED, PLACED_COLUMNS, TURNED, SPREAD = "PLACED", "PLACED_COLUMNS", "TURNED", "SPREAD"
"""Layouts of heads whose entries, rows or (blocks of) columns, lie in other places; the third's are columns of a matrix
for each head, and become rows; and of rows with a one in one column each."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """How the rows of a quantized matrix are made of the tensors of a file that hold it in a layout of its own.

    Attributes:
        layout: name of the layout; see `code_layouts.LAYOUTS`, `EXPERT_LAYOUTS`, `GROUPED` and `PLACED`.
        parts: its tensors, in the layout's order.
        group: inputs that share a scale there; 0: all.
        first: index of the first row in those tensors.
        step: difference of the indices of neighbouring rows.
        height: rows that share their scales.
        added: what is added to every scale.
        ordered: storage type of codes whose last part names the group of each input, and which become numbers; "":
            groups of inputs follow one another.
        places: for each entry, or block, of a head its place among the `group` of a head in the tensor, or the column
            of its one; −1: zeros.
    """

    layout: str
    parts: tuple[StoredTensor, ...]
    group: int
    first: int = 0
    step: int = 1
    height: int = 1
    added: float = 0.0
    ordered: str = ""
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a file's header describes it, or as it is assembled from several.

    Attributes:
        name: its name in the file.
        storage: type name of its values or blocks, such as "BF16" or "Q4_1".
        shape: outermost dimension first; a matrix is [outputs, inputs].
        offset: first byte in the file.
        nbytes: bytes in the file.
        checksum: of the tensor in the file, of which this may be some rows; None: the file has none.
        assembly: what its rows are made of; offset and size are then those of one part, and of the rows that are made.
    """

    name: str
    storage: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int
    checksum: Checksum | None = None
    assembly: Assembly | None = None

    @property
    def elements(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def file_elements(self) -> int:
        """Number of its values that files hold: others are placed between them."""
        made = self.assembly
        if made is None or not made.places:
            return self.elements
        if made.layout == SPREAD:
            return 0
        return self.elements * sum(place >= 0 for place in made.places) // len(made.places)

    @property
    def file_bytes(self) -> int:
        """Bytes of these."""
        whole = self.assembly.parts[0] if self.assembly is not None and self.assembly.places else self
        return whole.nbytes * self.file_elements // max(1, whole.elements)

    def rows(self, first: int, count: int) -> StoredTensor:
        """Return some of its rows, or entries of a vector, as a tensor of their own."""
        rows, *inner = self.shape
        if count == rows:
            return self
        size, made = self.nbytes // rows, self.assembly
        assembly = None if made is None else replace(made, first=made.first + first * made.step)
        offset = self.offset + first * size
        return replace(self, shape=(count, *inner), offset=offset, nbytes=count * size, assembly=assembly)

    @property
    def has_own_codes(self) -> bool:
        """True if it holds codes that we made: with any number format, they are computed with as they are."""
        return self.assembly is None and quantized_type(self.storage) is not None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold its values."""
        parts = () if self.assembly is None else self.assembly.parts
        return tuple(file for part in parts for file in part.files) or (self.file,)

    def error(self, text: str) -> BadModel:
        """Return an error about this tensor, such as "is truncated"."""
        return BadModel(f"{self.file.name}: tensor {self.name} {text}")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor that the model needs, and where its values are.

    Attributes:
        name: the canonical name.
        stored: where and how it is stored; its shape is the one that the model needs.
        interleaved_heads: number of heads whose rows hold rotary pairs adjacent, to be reordered into first and second
            halves; 0: the rows are in order.
        rotary_dim: leading rows of each of these heads that rotate; the others stay.
        shift: added to all values.
        exact: its values are float32 whatever the number format of the model: small differences choose other experts.
    """

    name: str
    stored: StoredTensor
    interleaved_heads: int = 0
    rotary_dim: int = 0
    shift: float = 0.0
    exact: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost dimension first."""
        return self.stored.shape


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model whose files were found and checked, headers only.

    Attributes:
        format: HF, GGUF or HEADRACE.
        path: the directory or file to open again for the same model.
        spec: what it computes.
        config_json: its config.json, or the metadata of a GGUF file without the vocabulary.
        generation: its generation config as in the files; empty if there is none.
        tensors: by canonical name.
        warnings: sentences about ignored contents and likely mistakes.
        revision: the commit if the path contains it, else a digest of names, sizes and headers.
        named_ends: ids that end a sequence, by the file that names them.
        bos_id: id that begins a sequence, if the files name one.
        tokenizer_path: the directory or GGUF file that holds the tokenizer.
        tool_template: separate chat template for chats with tools; None: one template for all chats.
    """

    format: ModelFormat
    path: Path
    spec: DecoderSpec
    config_json: str
    generation: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    revision: str
    tokenizer_path: Path
    warnings: tuple[str, ...] = ()
    chat_template: str | None = None
    named_ends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bos_id: int | None = None
    tool_template: str | None = None

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence, according to any of these files; the tokenizer may add more."""
        return tuple(dict.fromkeys(token_id for ids in self.named_ends.values() for token_id in ids))

    def with_rows(self, count: int) -> ModelFiles:
        """Return the model with its embedding and head cut to their first `count` rows.

        Raises:
            BadModel: it has fewer.
        """
        if count > self.spec.vocab_size:
            raise BadModel(f"{self.path}: has {self.spec.vocab_size} rows of a vocabulary; {count} are needed")
        tables = {name: self.tensors[name] for name in ("embed", "head") if name in self.tensors}
        cut = {name: replace(info, stored=info.stored.rows(0, count)) for name, info in tables.items()}
        return replace(self, spec=replace(self.spec, vocab_size=count), tensors={**self.tensors, **cut})

    @property
    def num_parameters(self) -> int:
        """Number of values of all tensors on disk; a tied head counts once."""
        return sum(info.stored.file_elements for info in self.tensors.values())

    @property
    def num_held(self) -> int:
        """Number of values of all tensors once they are assembled."""
        return sum(info.stored.elements for info in self.tensors.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors on disk."""
        return sum(info.stored.file_bytes for info in self.tensors.values())

    @property
    def number_type(self) -> str:
        """Storage type of the model's numbers: the embedding's, or a norm's where we quantized the embedding."""
        embed = self.tensors["embed"].stored.storage
        return embed if quantized_type(embed) is None else self.tensors["final_norm"].stored.storage

    @property
    def bytes_per_value(self) -> int:
        """Bytes of an activation in the model's own number format; block formats count as 16-bit."""
        return 4 if self.number_type in ("F32", "F64") else 2
