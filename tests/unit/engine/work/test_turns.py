"""Work before the core: what one kind or one owner waits for costs no other."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import headrace_engine
import headrace_gateway
import pytest
from headrace_engine.chat_types import Chat, ChatMessage
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.models.prepare import prepare
from headrace_engine.engine.text import spellings as spellings_module
from headrace_engine.engine.text.spellings import SLICE, in_slices, spelling_size, spellings
from headrace_engine.engine.work.pool import MAX_STUCK
from headrace_engine.engine.work.pools import INLINE_SIZE, LONG_SIZE
from headrace_engine.errors import BadModel, HeadraceError
from headrace_engine.model_types import ModelState
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_gateway.forwarding.routing import MOVES_ON
from support.clocks.waiting import LIMIT, wait_until
from support.engine.held import PREPARE
from support.engine.rig import NAME, Rig
from support.scripted.core import READY

WORDS = tuple(f"word{number}" for number in range(2 * SLICE // 100))


class Stuck:
    """Reads of models in the folder /stuck never end, as those of a file system that hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.go = threading.Event()
        monkeypatch.setattr(PREPARE, self)

    def __call__(self, config: RuntimeConfig, *rest: Any) -> Any:
        if config.model_path.startswith("/stuck"):
            self.count += 1
            assert self.go.wait(LIMIT)
        return prepare(config, *rest)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    stuck = Stuck(monkeypatch)
    yield stuck
    stuck.go.set()


async def test_f1_stuck_installs_cost_installs_alone(rig: Rig, stuck: Stuck) -> None:
    rig.launcher.ready_at_once = replace(READY, max_length=4096)
    await rig.run()
    for number in range(8):
        await rig.engine.install_model(rig.config(f"m{number}", model_path=f"/stuck/{number}"), no_wait=True)
    text = "Hello world. " * (INLINE_SIZE // 10)
    works: list[Any] = [
        rig.start(text),
        rig.start(Chat((ChatMessage("user", "Hello"),))),
        rig.start("x", config={"response_format": ResponseFormat(ResponseFormatKind.REGEX, "[ab]+")}),
        rig.start("x", config={"stop_words": ("y" * (INLINE_SIZE + 1),)}),
        rig.start("x", config={"bad_words": WORDS}),
        rig.engine.detokenize(NAME, [5] * (INLINE_SIZE + 1), skip_special_tokens=True),
        rig.install("good"),
    ]
    await asyncio.wait_for(asyncio.gather(*works), LIMIT)
    await asyncio.to_thread(wait_until, lambda: stuck.count == 3, "one folder leaves one thread to others")


async def test_f1_an_install_with_hanging_files_fails_for_a_retry(rig: Rig, stuck: Stuck) -> None:
    rig.new_engine(file_limit=0.05)
    with pytest.raises(BadModel, match=r"reading the model: it took more than 0.05 s. Check that its file"):
        await rig.install(model_path="/stuck/model")
    assert rig.state is ModelState.FAILED
    rig.engine.pools.files.limits = replace(rig.engine.pools.files.limits, seconds=600.0)
    await rig.install()
    assert rig.state is ModelState.INITIAL


@pytest.mark.parametrize("letter", ["x", " "])
async def test_f8_words_are_spelled_some_at_a_time(rig: Rig, monkeypatch: pytest.MonkeyPatch, letter: str) -> None:
    """While one owner's words are being spelled another's are, and both get the ids that all words at once have."""
    await rig.run()
    held, go = threading.Event(), threading.Event()

    def slow(bundle: Any, words: Any) -> Any:
        if words[0] == "slow":
            held.set()
            assert go.wait(LIMIT)
        return spellings(bundle, words)

    monkeypatch.setattr(spellings_module, "spellings", slow)
    slow_words = ("slow", *WORDS)
    starts = [
        asyncio.create_task(rig.start("x", owner="hog", config={"bad_words": slow_words, "seed": number}))
        for number in range(6)
    ]
    try:
        await asyncio.to_thread(held.wait, LIMIT)
        accepted = await rig.start("x", owner="other", config={"bad_words": (letter, *WORDS)})
        assert accepted.effective_config is not None
        assert not any(start.done() for start in starts)
    finally:
        go.set()
    await asyncio.gather(*starts)
    prepared = rig.engine._models.prepared(NAME)
    whole = spellings(prepared.text._bundle, (letter, *WORDS))
    assert rig.core.added[0].rules is not None
    assert rig.core.added[0].rules.bad_words == whole


def test_slices_hold_every_word_once_and_measure_little() -> None:
    words = ["a", "b" * (3 * SLICE), *("c" * 230 for _ in range(400)), "d"]
    slices = in_slices(words)
    assert [word for each in slices for word in each] == words
    assert all(spelling_size(each) <= SLICE or len(each) == 1 for each in slices)
    assert len(slices) == 11
    assert in_slices([]) == []


async def test_f8_long_texts_of_one_owner_hold_up_no_shorter_one(rig: Rig) -> None:
    pools = rig.engine.pools
    go = threading.Event()
    long = [asyncio.create_task(pools.on_text("a", LONG_SIZE + 1, go.wait, LIMIT)) for _ in range(4)]
    assert await pools.on_text("a", LONG_SIZE, str, "short") == "short"
    assert await pools.on_text("b", LONG_SIZE + 1, str, "other") == "other"
    go.set()
    assert await asyncio.gather(*long) == [True] * 4


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        ("files", "BAD_MODEL"),
        ("downloads", "BAD_MODEL"),
        ("texts", "INVALID_FIELD"),
        ("long_texts", "INVALID_FIELD"),
        ("formats", "BAD_RESPONSE_FORMAT"),
    ],
)
async def test_f1_work_that_is_stuck_is_tried_on_one_engine(rig: Rig, pool: str, reason: str) -> None:
    """What it is to blame for goes with it; what its owner sends next may find room elsewhere."""
    works, go = getattr(rig.engine.pools, pool), threading.Event()
    works.limits = replace(works.limits, seconds=0.01)
    try:
        for _ in range(MAX_STUCK // 4):
            with pytest.raises(HeadraceError, match=r"it took more than 0\.01 s") as stuck:
                await works.run("a", go.wait, 60)
            assert stuck.value.reason == reason
        with pytest.raises(HeadraceError) as refused:
            await works.run("a", str, 1)
    finally:
        go.set()
    assert stuck.value.reason not in MOVES_ON
    assert refused.value.reason == "QUEUE_FULL"
    assert refused.value.reason in MOVES_ON


@pytest.mark.parametrize("package", [headrace_engine, headrace_gateway])
def test_f1_nothing_shares_the_pool_of_the_event_loop(package: Any) -> None:
    """It has few threads for everybody, waits without a limit, and holds up the end of the process."""
    assert package.__file__
    found = [
        f"{path}:{node.lineno}"
        for path in Path(package.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("to_thread", "run_in_executor")
    ]
    assert not found
