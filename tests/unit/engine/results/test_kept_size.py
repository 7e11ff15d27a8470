"""What a request keeps is in its owner's room, and goes when nobody needs it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.characters import word_finder
from headrace_engine.characters.word_finder import WordFinder
from headrace_engine.engine.requests.request_size import PLAIN_BYTES, held_bytes, payload_size
from headrace_engine.engine.results.budget import log_bytes
from headrace_engine.engine.text.stopping import StoppingDetokenizer
from headrace_engine.errors import InvalidArgument, ResourceExhausted
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_engine.result_types import FinishReason
from support.engine.rig import NAME, Rig

STOPS: dict[str, Any] = {
    "stop_words": tuple(f"word {number:025d}" for number in range(1000)),
    "stop_words_ids": tuple((number % 90, number // 90, *range(14)) for number in range(2000)),
    "max_new_tokens": 3,
}
IDS = 2000 * 16
CHARACTERS = 1000 * 30

FRAMES = 8
FINDERS = tracemalloc.Filter(True, word_finder.__file__, all_frames=True)
"""What finders have allocated, also by others; threads of other tests allocate meanwhile too."""


def taken(rig: Rig) -> int:
    return rig.engine._registry.budget.taken(("", NAME))


class Alive:
    """The objects of a type that there are, but for those that were there before."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._before = self._all()  # Kept, so that no other one gets the identity of one of them.

    async def count(self) -> int:
        await asyncio.sleep(0)  # The event loop holds the result that it woke the test with.
        before = {id(each) for each in self._before}
        return sum(id(each) not in before for each in self._all())

    def _all(self) -> list[Any]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is self._kind]


def test_f7_a_finder_takes_few_bytes_a_symbol() -> None:
    tracemalloc.start(FRAMES)
    try:
        finder = WordFinder(STOPS["stop_words_ids"])
        kept = tracemalloc.take_snapshot().filter_traces([FINDERS])
    finally:
        tracemalloc.stop()
    assert finder.nbytes <= 20 * (IDS + 2)
    assert finder.nbytes <= sum(trace.size for trace in kept.traces) < 2 * finder.nbytes + 10_000


async def test_f7_what_a_request_brings_is_in_its_owners_room(rig: Rig) -> None:
    """Config, prompt and finders while it runs; the config alone after its end; nothing after its release."""
    detokenizers, finders = Alive(StoppingDetokenizer), Alive(WordFinder)
    core = await rig.run()
    accepted = await rig.start(config=STOPS)
    assert accepted.effective_config is not None
    config = held_bytes(accepted.effective_config)
    assert taken(rig) > log_bytes(3) + config + 20 * (IDS + CHARACTERS)
    assert await detokenizers.count() == 1
    assert await finders.count() >= 2
    core.step({rig.added().key: 1}, ended={rig.added().key: FinishReason.EOS})
    assert taken(rig) == log_bytes(1) + config - PLAIN_BYTES
    assert await detokenizers.count() == 0
    assert await finders.count() == 0
    await rig.engine.release_request(accepted.handle, "")
    assert taken(rig) == 0
    assert not rig.engine._registry.budget._taken


async def test_f7_it_goes_with_the_last_of_several_sequences(rig: Rig) -> None:
    finders = Alive(WordFinder)
    core = await rig.run()
    await rig.start(config={**STOPS, "n": 3})
    keys = [each.key for each in core.added]
    before = taken(rig)
    for key in keys[:2]:
        core.step(ended={key: FinishReason.EOS})
    assert before - taken(rig) == 2 * (log_bytes(3) - log_bytes(0))
    assert await finders.count() > 0
    core.step(ended={keys[2]: FinishReason.EOS})
    assert await finders.count() == 0
    assert before - taken(rig) > 3 * (log_bytes(3) - log_bytes(0)) + 20 * IDS


async def test_f7_the_best_of_candidates_keep_the_config_alone(rig: Rig) -> None:
    finders = Alive(WordFinder)
    core = await rig.run()
    accepted = await rig.start(config={**STOPS, "best_of": 2})
    for each in list(core.added):
        core.step({each.key: 1}, ended={each.key: FinishReason.EOS})
    assert accepted.effective_config is not None
    assert taken(rig) > held_bytes(accepted.effective_config) - PLAIN_BYTES
    assert await finders.count() == 0
    await rig.engine.release_request(accepted.handle, "")
    assert taken(rig) == 0


async def test_f7_what_others_kept_leaves_no_room_for_more(rig: Rig) -> None:
    await rig.run(max_result_bytes=10_000_000)
    with pytest.raises(ResourceExhausted) as caught:
        for _ in range(10):
            await rig.start(config=STOPS)
    assert caught.value.reason == "RESULTS_FULL"
    assert taken(rig) <= 10_000_000


async def test_f7_what_never_fits_is_refused_by_its_field(rig: Rig) -> None:
    await rig.run(max_result_bytes=100_000)
    with pytest.raises(InvalidArgument, match=r"takes most of \d+ bytes that the request brings") as caught:
        await rig.start(config=STOPS)
    assert caught.value.violations[0].field == "config.stop_words_ids"


@pytest.mark.parametrize(
    ("config", "prompt", "largest"),
    [
        (GenerationConfig(), 10_000, "prompt"),
        (GenerationConfig(stop_words=("a" * 50_000,)), 10, "config.stop_words"),
        (GenerationConfig(logit_bias=dict.fromkeys(range(1000), 1.0)), 10, "config.logit_bias"),
        (
            GenerationConfig(response_format=ResponseFormat(ResponseFormatKind.REGEX, "a" * 50_000)),
            10,
            "config.response_format",
        ),
    ],
)
def test_f7_the_largest_part_is_named(config: GenerationConfig, prompt: int, largest: str) -> None:
    found = payload_size(config, prompt, 16, 1)
    assert found.largest == largest
    assert found.bytes > found.ended_bytes


def test_f7_a_plain_request_can_take_in_its_log() -> None:
    assert payload_size(GenerationConfig(temperature=0.5, max_new_tokens=9, stop_words=("a", "b")), 5, 9, 1).bytes == 0


HOSTILE = """
import asyncio, gc, sys
from pathlib import Path
from headrace_engine.result_types import FinishReason
from support.engine.rig import Rig

CONFIG = {
    "stop_words": tuple(f"word {number:025d}" for number in range(2000)),
    "stop_words_ids": tuple((number % 90, number // 90, *range(14)) for number in range(4000)),
    "max_new_tokens": 1,
}

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

async def main():
    rig = Rig(Path(sys.argv[1]))
    core = await rig.run()
    await rig.start(config=CONFIG)
    gc.collect()
    before = resident()
    for _ in range(16):
        await rig.start(config=CONFIG)
        core.step({core.added[-1].key: 1}, ended={core.added[-1].key: FinishReason.EOS})
    gc.collect()
    print(resident() - before)

asyncio.run(main())
"""


def test_f7_sixteen_requests_full_of_stops_take_little_memory(model_path: Path) -> None:
    """They took 33 MB each until their release. The bound is that of a tenth, which their configs have for readers."""
    tests = Path(__file__).parents[3]
    program = [sys.executable, "-c", HOSTILE, str(model_path)]
    done = subprocess.run(program, env={"PYTHONPATH": str(tests)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 16 * 5_000_000


def test_long_lists_are_measured_as_one_by_one() -> None:
    texts, lists = ("a", "bc", "d" * 40), ((1, 2), (3,), (4, 5, 6))
    assert held_bytes(texts) == sys.getsizeof(texts) + sum(map(held_bytes, texts))
    assert held_bytes(lists) == sys.getsizeof(lists) + sum(map(held_bytes, lists))
    config = GenerationConfig(stop_words=texts, stop_words_ids=lists, bad_words=texts, eos_token_id=(1, 2))
    assert payload_size(config, 5, 10, 1).config == held_bytes(config)
