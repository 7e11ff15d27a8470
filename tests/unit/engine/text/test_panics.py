"""Panics of the tokenizers library: told at once to whom they hit, and to no other."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.chat_types import Chat, ChatMessage
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.models import model as model_module
from headrace_engine.errors import BadModel, HeadraceError, Internal, InvalidArgument
from headrace_engine.model_types import ModelState
from support.engine.rig import NAME, Rig
from support.models.json_files import read_json, write_json
from unit.engine.work.test_work_pool import Panic

BACKTRACKS = "a" * 40 + "b"
"""A text for which the pattern (a+)+$ takes for ever; the library gives up, and panics."""

SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def changed(model_path: Path, to: Path, **changes: Any) -> Path:
    """The tiny model with another tokenizer.json."""
    shutil.copytree(model_path, to)
    write_json(to / "tokenizer.json", {**read_json(to / "tokenizer.json"), **changes})
    return to


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<absent>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {},
            }
        },
    ],
    ids=["charsmap", "empty expression", "absent token"],
)
async def test_f2_a_tokenizer_that_panics_fails_its_install(rig: Rig, tmp_path: Path, changes: dict[str, Any]) -> None:
    path = str(changed(rig.model_path, tmp_path / "model", **changes))
    refusal = (await rig.engine.inspect_model(path)).refusal
    assert isinstance(refusal, BadModel)
    for _ in range(2):
        with pytest.raises(BadModel):
            await rig.install(model_path=path)
        assert rig.state is ModelState.FAILED
    await rig.install()
    assert rig.state is ModelState.INITIAL


async def refused(rig: Rig, prompt: Any, **config: Any) -> HeadraceError:
    with pytest.raises(InvalidArgument) as caught:
        await rig.start(prompt, config=config)
    assert caught.value.reason == "INVALID_FIELD"
    return caught.value


async def test_f2_a_text_that_panics_the_tokenizer_is_refused_alone(rig: Rig, tmp_path: Path) -> None:
    splits = {"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}
    path = changed(rig.model_path, tmp_path / "model", pre_tokenizer=splits)
    await rig.run(model_path=str(path))
    neighbour = asyncio.create_task(rig.start("ab"))
    error = await refused(rig, BACKTRACKS)
    assert "retry-limit-in-match over" in error.message
    assert error.violations[0].field == "prompt"
    chat = Chat((ChatMessage("user", BACKTRACKS),), add_generation_prompt=False)
    assert "retry-limit-in-match over" in (await refused(rig, chat)).message
    error = await refused(rig, "ab", bad_words=("fine", BACKTRACKS))
    assert error.violations[0].field == "config.bad_words"
    assert "aaa" in error.message
    with pytest.raises(InvalidArgument):
        await rig.engine.tokenize(NAME, BACKTRACKS)
    assert (await neighbour).handle
    assert (await rig.start("ab")).handle


async def test_f2_another_panic_in_an_install_fails_the_model(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(config: RuntimeConfig, *_: Any) -> None:
        raise Panic("index out of bounds")

    with monkeypatch.context() as patch:
        patch.setattr(model_module, "prepare", panic)
        with pytest.raises(Internal, match="Panic: index out of bounds"):
            await rig.install()
    assert rig.state is ModelState.FAILED
    await rig.install()
    assert rig.state is ModelState.INITIAL
