"""The stops of a request, with the word finders that its sequences share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace_engine.characters.stop_words import StopWords, stop_words_of
from headrace_engine.characters.word_finder import WordFinder
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.result_types import StopKind


@dataclass(frozen=True, slots=True)
class IdStop:
    """Ids that end a sequence.

    Attributes:
        kind: the list they come from; None: EOS.
        index: their index in it.
    """

    ids: tuple[int, ...]
    kind: StopKind | None
    index: int


@dataclass(frozen=True, slots=True)
class Stops:
    """The stops of one request, by text or by last ids.

    Attributes:
        words: searched in the text.
        ids: ids that end a sequence; EOS last, so that the caller's stops take precedence.
        longest: maximum number of ids of one of them.
        include: keep the text of the matching stop.
        min_new: number of tokens before which no stop ends a sequence.
    """

    words: StopWords
    ids: tuple[IdStop, ...]
    id_finder: WordFinder
    longest: int
    include: bool
    min_new: int


def stops_of(config: GenerationConfig, eos_ids: tuple[int, ...], min_new: int, bundle: TokenizerBundle) -> Stops | None:
    """Return the stops of a request; None: no stop affects the text of its sequences.

    Args:
        config: an effective config.
        eos_ids: ids at which the core ends a sequence; their text is removed here.
    """
    skips = config.skip_special_tokens is not False
    hidden: frozenset[int] = bundle.special_ids if skips else frozenset()
    has_stops = config.stop_words or config.stop_words_ids or config.stop_token_ids
    if not has_stops and (config.include_stop or hidden.issuperset(eos_ids)):
        return None
    special = dict(zip(bundle.special_texts, sorted(bundle.special_ids), strict=True)) if skips else {}
    ids = (*_id_stops(config), *(IdStop((token_id,), None, 0) for token_id in eos_ids))
    return Stops(
        words=stop_words_of(config.stop_words, special),
        ids=ids,
        id_finder=WordFinder(stop.ids for stop in ids),
        longest=max((len(stop.ids) for stop in ids), default=1),
        include=bool(config.include_stop),
        min_new=min_new,
    )


def _id_stops(config: GenerationConfig) -> Iterator[IdStop]:
    for index, ids in enumerate(config.stop_words_ids):
        yield IdStop(ids, StopKind.STOP_WORDS_IDS, index)
    for index, token_id in enumerate(config.stop_token_ids):
        yield IdStop((token_id,), StopKind.STOP_TOKEN_IDS, index)
