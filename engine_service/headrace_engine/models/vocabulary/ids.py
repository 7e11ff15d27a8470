"""The ids that a tokenizer and a model have in common, and those that end a request."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_engine.errors import shown
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.vocabulary.built import BuiltTokenizer


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of a model.

    Attributes:
        size: upper bound (exclusive) of the ids. Rows of the model beyond it are unused.
        holes: ids below it that are unused too.
        ends: ids that end a request.
        warnings: sentences about contradictions between its files.
    """

    size: int
    holes: frozenset[int]
    ends: tuple[int, ...]
    warnings: tuple[str, ...]


def ids_of(files: ModelFiles, built: BuiltTokenizer, vocabulary: Mapping[str, int]) -> Ids:
    """Return the ids that have both a text in the tokenizer, whose vocabulary this is, and a row in the model."""
    rows, source = files.spec.vocab_size, files.tokenizer_path.name
    named = set(vocabulary.values()) - built.unused
    size = min(max(named, default=-1) + 1, rows)
    known = {token_id for token_id in named if token_id < size}
    sources = {**files.named_ends, **_named_by(built)}
    ends = tuple(dict.fromkeys(token_id for ids in sources.values() for token_id in ids if token_id in known))
    beyond = sorted(token_id for token_id in named if token_id >= rows)
    warnings = [*built.warnings, *_beyond(built.tokenizer, beyond, rows, source), *_disagreement(sources, ends, known)]
    return Ids(size, frozenset(range(size)) - known, ends, tuple(warnings))


def _named_by(built: BuiltTokenizer) -> dict[str, tuple[int, ...]]:
    """Return the ids that end a sequence according to the tokenizer."""
    text = built.named.get("eos_token", "")
    token_id = built.tokenizer.token_to_id(text) if text else None
    return {} if token_id is None else {f"the tokenizer ({shown(text)})": (token_id,)}


def _beyond(tokenizer: Any, ids: list[int], rows: int, source: str) -> Iterator[str]:
    if ids:
        named = ", ".join(f"{shown(tokenizer.id_to_token(token_id))} ({token_id})" for token_id in ids[:3])
        more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
        yield f"{source}: the model has {rows} rows, and none for {named}{more}: a prompt that holds one is refused"


def _disagreement(
    sources: Mapping[str, tuple[int, ...]], ends: tuple[int, ...], known: Collection[int]
) -> Iterator[str]:
    named = {source: ids for source, ids in sources.items() if ids}
    if not named:
        yield "none of the model's files names an end (eos_token_id, eos_token): requests end by their length only"
        return
    for source, ids in named.items():
        absent = [token_id for token_id in ids if token_id not in known]
        if absent:
            yield f"{source} names {_list(absent)} as end: the tokenizer and the model do not both have it"
    first, *others = named.values()
    if any(set(ids) - set(first) for ids in others):
        listed = ", ".join(f"{_list(ids)} by {source}" for source, ids in named.items())
        yield f"the model's files name different ends: {listed}; any of {_list(ends)} ends a request"


def _list(ids: Collection[int]) -> str:
    return ", ".join(map(str, ids))
