"""Slow reference of where stops end a sequence: searches the whole text again after every id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace_engine.engine.text.stopping import Decoder, StoppingDetokenizer
from headrace_engine.engine.text.stops import stops_of
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.models.tokenizer import TokenizerBundle

SPECIAL = "\ue000"
"""Marks around the name of a special token that the text leaves out."""


@dataclass(frozen=True)
class Outcome:
    """Result for ids: how many were taken, their whole text, and the stop as (list, index, text)."""

    count: int
    text: str
    stop: tuple[str, int, str] | None = None


def effective(**fields: Any) -> GenerationConfig:
    """Return a config with the defaults applied."""
    return GenerationConfig(**{"skip_special_tokens": True, "include_stop": False, **fields})


def decoder_of(
    bundle: TokenizerBundle, config: GenerationConfig, eos: tuple[int, ...] = (), min_new: int = 0
) -> Decoder:
    """Return a decoder with stops."""
    stops = stops_of(config, eos, min_new, bundle)
    assert stops is not None
    skipped = bundle.special_ids if config.skip_special_tokens else frozenset()
    return StoppingDetokenizer(stops, bundle.token_bytes, skipped)


def streamed(decoder: Decoder, ids: Sequence[int], eos: tuple[int, ...] = (), min_new: int = 0) -> Outcome:
    """Return a decoder's result for ids, ended by EOS as a core would end them."""
    text = ""
    for count, token_id in enumerate(ids, 1):
        text += decoder.push(token_id)
        if decoder.stop is not None:
            stop = decoder.stop
            assert decoder.flush() == ""
            return Outcome(count, text, (stop.kind.value, stop.index, stop.text))
        if token_id in eos and count > min_new:
            return Outcome(count, text + decoder.flush())
    return Outcome(len(ids), text + decoder.flush())


class Reference:
    """Stateless implementation of the rules."""

    def __init__(
        self, bundle: TokenizerBundle, config: GenerationConfig, eos: tuple[int, ...] = (), min_new: int = 0
    ) -> None:
        self._bundle, self._config, self._eos, self._min_new = bundle, config, eos, min_new

    def outcome(self, ids: Sequence[int]) -> Outcome:
        for count in range(self._min_new + 1, len(ids) + 1):
            found = self._by_word(ids[:count]) or self._by_ids(ids[:count])
            if found is not None:
                return found
            if ids[count - 1] in self._eos:
                return Outcome(count, self._text(ids[: count if self._config.include_stop else count - 1]))
        return Outcome(len(ids), self._text(ids))

    def _by_word(self, ids: Sequence[int]) -> Outcome | None:
        """Return the first word that ends in the text of the last id, in either reading of the text."""
        ends = []
        for show in (self._whole, self._marked):
            before, now = show(ids[:-1]), show(ids)
            for index, word in enumerate(self._config.stop_words):
                spelled = self._spelled(word) if show == self._marked else word
                if show == self._marked and spelled == word:
                    continue
                ends += [
                    (len(_unmarked(now[:end])), -len(word), index, now[: end - len(spelled)], spelled)
                    for end in range(len(before) + 1, len(now) + 1)
                    if now[:end].endswith(spelled)
                ]
        if not ends:
            return None
        _, _, index, kept, spelled = min(ends)
        word = self._config.stop_words[index]
        kept = _unmarked(kept)
        if not _unmarked(spelled):  # The word contains none of the text, so half a character before it is delivered.
            kept += self._text(ids)[len(self._whole(ids)) :]
        return Outcome(len(ids), kept + (word if self._config.include_stop else ""), ("STOP_WORDS", index, word))

    def _by_ids(self, ids: Sequence[int]) -> Outcome | None:
        lists = [("STOP_WORDS_IDS", index, words) for index, words in enumerate(self._config.stop_words_ids)]
        lists += [("STOP_TOKEN_IDS", index, (word,)) for index, word in enumerate(self._config.stop_token_ids)]
        found = [entry for entry in lists if tuple(ids[-len(entry[2]) :]) == entry[2]]
        if not found:
            return None
        kind, index, words = max(found, key=lambda entry: len(entry[2]))
        before = ids[: -len(words)]
        shown = b"".join(map(self._bundle.token_bytes, words))
        if self._config.include_stop:
            text = (self._bytes(before) + shown).decode(errors="replace")
        else:
            text = self._text(before)
        return Outcome(len(ids), text, (kind, index, shown.decode(errors="replace")))

    def _bytes(self, ids: Sequence[int]) -> bytes:
        hidden = self._bundle.special_ids if self._config.skip_special_tokens else frozenset()
        return b"".join(self._bundle.token_bytes(token_id) for token_id in ids if token_id not in hidden)

    def _text(self, ids: Sequence[int]) -> str:
        return self._bytes(ids).decode(errors="replace")

    def _whole(self, ids: Sequence[int]) -> str:
        return _without_cut(self._bytes(ids))

    def _marked(self, ids: Sequence[int]) -> str:
        """Return the text with the names of special tokens in it, each at the end of the text when it came."""
        text, shown = "", ""
        for count in range(1, len(ids) + 1):
            now = self._whole(ids[:count])
            text += now[len(shown) :]
            shown = now
            if ids[count - 1] in self._bundle.special_ids and self._config.skip_special_tokens:
                text += SPECIAL + self._bundle.token_bytes(ids[count - 1]).decode() + SPECIAL
        return text

    def _spelled(self, word: str) -> str:
        if self._config.skip_special_tokens:
            for name in self._bundle.special_texts:
                word = word.replace(name, SPECIAL + name + SPECIAL)
        return word


def _unmarked(text: str) -> str:
    return "".join(part for place, part in enumerate(text.split(SPECIAL)) if place % 2 == 0)


def _without_cut(data: bytes) -> str:
    from codecs import utf_8_decode

    return utf_8_decode(data, "replace")[0]
