"""With the tokenizer of a real model: streamed text is that of all ids, and stops end it where the rules say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.characters.detokenizer import Detokenizer
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from support.models.stop_reference import Reference, decoder_of, effective, streamed

TEXTS = (
    "Why is the sky blue? 你好👍🏽é—ﬁ <|im_end|>\n\n1, 2, 3… It's “quoted” text, with   spaces.\n",
    "def main():\n    return [x for x in range(10)]  # naïve\n<|im_start|>user\nHello!<|im_end|>\n",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿 Ζεύς и мир שלום ١٢٣\r\n\t~~~ end",
)


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> TokenizerBundle:
    return load_tokenizer(open_model(str(smollm2)))


def id_lists(smol: TokenizerBundle, count: int, seed: int) -> list[list[int]]:
    """Parts of real texts, with random ids thrown in."""
    source = random.Random(seed)
    texts = [smol.encode(text) for text in TEXTS]
    lists = []
    for _ in range(count):
        whole = source.choice(texts)
        begin = source.randrange(len(whole))
        ids = whole[begin : begin + source.randint(1, 40)]
        for _ in range(source.choice((0, 0, 1, 3))):
            ids.insert(source.randint(0, len(ids)), source.randrange(len(smol.pieces)))
        lists.append(ids)
    return lists


@pytest.mark.parametrize("skip", [True, False])
def test_bc004_streamed_text_is_the_library_s_text_of_the_whole(smol: TokenizerBundle, skip: bool) -> None:
    for ids in id_lists(smol, 2000, seed=1):
        decoder = Detokenizer(smol.token_bytes, smol.special_ids if skip else ())
        text = "".join(map(decoder.push, ids)) + decoder.flush()
        assert text == smol.tokenizer.decode(ids, skip_special_tokens=skip), ids


def random_stops(smol: TokenizerBundle, ids: list[int], source: random.Random) -> dict[str, Any]:
    """Stops that may come in these ids: pieces of their text and of themselves."""
    whole = b"".join(map(smol.token_bytes, ids)).decode(errors="ignore") or "x"

    def word() -> str:
        begin = source.randrange(len(whole))
        return whole[begin : begin + source.randint(1, 8)]

    def part() -> tuple[int, ...]:
        begin = source.randrange(len(ids))
        return tuple(ids[begin : begin + source.randint(1, 3)])

    return {
        "stop_words": tuple(word() for _ in range(source.randint(0, 3))),
        "stop_words_ids": tuple(part() for _ in range(source.choice((0, 0, 1)))),
        "stop_token_ids": tuple(part()[:1] * source.choice((0, 0, 1))),
    }


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("skip", [True, False])
def test_stops_end_a_text_where_the_rules_say(smol: TokenizerBundle, skip: bool, include: bool) -> None:
    source, stopped = random.Random(2), 0
    for ids in id_lists(smol, 600, seed=3):
        stops = random_stops(smol, ids, source)
        min_new = source.choice((0, 0, 5))
        config = effective(**stops, skip_special_tokens=skip, include_stop=include)
        if not any(stops.values()):
            continue
        expected = Reference(smol, config, min_new=min_new).outcome(ids)
        assert streamed(decoder_of(smol, config, min_new=min_new), ids, min_new=min_new) == expected, (ids, stops)
        stopped += expected.stop is not None
    assert stopped > 100
