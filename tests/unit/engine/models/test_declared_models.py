"""Models that the command line declares, beside those that are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.engine.models.kept_models import Replaced
from headrace_engine.engine.models.state_store import FILE
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.model_types import ModelState
from support.engine.rig import NAME, Rig
from unit.engine.models.restarts import rest, restart, saved


async def keep_as_older_builds_did(rig: Rig, folder: Path) -> None:
    """One model kept by a build that neither confined paths nor kept whose they are, nor knew the newest fields."""
    await rig.new_engine(state_dir=folder).start()
    await rig.run()
    await rig.engine.close()
    (entry,) = json.loads((folder / FILE).read_text(encoding="utf-8"))
    del entry["by_operator"]
    del entry["config"]["prefix_cache_ttl"], entry["config"]["num_host_blocks"]
    (folder / FILE).write_text(json.dumps([entry]), encoding="utf-8")


async def test_a_model_that_an_older_build_kept_returns(rig: Rig, tmp_path: Path) -> None:
    await keep_as_older_builds_did(rig, tmp_path)
    await rig.new_engine(state_dir=tmp_path, model_roots=(rig.model_path,)).start()
    assert await rest(rig) == {NAME: ModelState.RUNNING}
    config = rig.engine.get_model(NAME).effective.config
    assert (config.model_path, config.prefix_cache_ttl, config.num_host_blocks) == (str(rig.model_path), None, 0)


@pytest.mark.parametrize("roots", [(), ("elsewhere",)])
async def test_an_older_builds_model_outside_the_roots_waits(rig: Rig, tmp_path: Path, roots: tuple[str, ...]) -> None:
    """It may have been a caller's. It fails with what its operator can do, and is still kept."""
    await keep_as_older_builds_did(rig, tmp_path)
    outside = tuple(tmp_path / name for name in roots)
    await rig.new_engine(state_dir=tmp_path, model_roots=outside).start()
    assert await rest(rig) == {NAME: ModelState.FAILED}
    failure = rig.engine.get_model(NAME).failure
    assert isinstance(failure, InvalidArgument)
    assert "model-root" in failure.message
    assert saved(tmp_path) == {NAME: "RUNNING"}
    await restart(rig, tmp_path, model_roots=(rig.model_path,))
    assert await rest(rig) == {NAME: ModelState.RUNNING}


async def test_an_operator_who_names_an_older_builds_model_has_it(rig: Rig, tmp_path: Path) -> None:
    """On the command line once, whatever the roots are; from then on it is known to be the operator's."""
    await keep_as_older_builds_did(rig, tmp_path)
    assert await rig.new_engine(state_dir=tmp_path, model_roots=()).start([rig.config()]) == []
    assert await rest(rig) == {NAME: ModelState.RUNNING}
    await restart(rig, tmp_path, model_roots=())
    assert await rest(rig) == {NAME: ModelState.RUNNING}


class TestDeclared:
    """Models of the command line, which is newer than what was kept."""

    @pytest.fixture(autouse=True)
    async def kept(self, rig: Rig, tmp_path: Path) -> None:
        """A model and another one were running when the engine went away."""
        await rig.new_engine(state_dir=tmp_path).start()
        await rig.run(max_batch=32)
        await rig.run("other")
        await rig.engine.close()
        rig.new_engine(state_dir=tmp_path)

    async def test_an_equal_config_is_returned_to(self, rig: Rig) -> None:
        assert await rig.engine.start([rig.config(max_batch=32)]) == []
        assert await rest(rig) == {NAME: ModelState.RUNNING, "other": ModelState.RUNNING}

    async def test_another_config_takes_the_place_of_what_was_kept(self, rig: Rig, tmp_path: Path) -> None:
        newer = rig.config(max_batch=4, max_length=64)
        assert await rig.engine.start([newer]) == [Replaced(NAME, ("max_batch: 32 -> 4", "max_length: unset -> 64"))]
        await rig.engine.install_model(newer)
        assert batches(tmp_path) == {NAME: 4, "other": None}
        assert rig.engine.get_model(NAME).effective.config.max_batch == 4
        await rest(rig)

    async def test_a_kept_config_stays_until_the_new_one_is_read(
        self, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        newer = rig.config(max_batch=4)
        await rig.engine.start([newer])
        await rest(rig)
        assert batches(tmp_path) == {NAME: 32, "other": None}

        def damaged(*_: object) -> None:
            raise BadModel("the tokenizer is damaged")

        monkeypatch.setattr("headrace_engine.engine.models.model.prepare", damaged)
        with pytest.raises(BadModel):
            await rig.engine.install_model(newer)
        assert batches(tmp_path) == {NAME: 32, "other": None}
        await rig.engine.release_model(NAME)
        assert batches(tmp_path) == {"other": None}

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"model_path": "/nowhere/at/all"}, "/nowhere/at/all: no such file or directory"),
            ({"max_length": 10**6}, "exceeds the model's maximum"),
            ({"max_batch": 0}, "max_batch = 0 is out of range"),
        ],
    )
    async def test_a_wrong_one_is_refused_before_anything_is_done(
        self, rig: Rig, tmp_path: Path, changes: dict[str, Any], text: str
    ) -> None:
        with pytest.raises((BadModel, InvalidArgument), match=text):
            await rig.engine.start([rig.config(**changes)])
        assert rig.engine.list_models() == []
        assert batches(tmp_path) == {NAME: 32, "other": None}
        await rig.new_engine(state_dir=tmp_path).start()  # The folder is not held.
        await rest(rig)

    async def test_a_name_on_a_hub_is_not_fetched_before_the_engine_is_up(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace_engine.models.loaders.hub.fetch", lambda *_: pytest.fail("fetched"))
        (replaced,) = await rig.engine.start([rig.config(model_path="owner/model", max_batch=32)])
        assert replaced.changes == (f"model_path: {rig.model_path} -> owner/model",)
        await rest(rig)


def batches(folder: Path) -> dict[str, Any]:
    """max_batch by name, as it is on disk."""
    entries = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return {entry["config"]["model_name"]: entry["config"]["max_batch"] for entry in entries}
