"""Model paths of callers: what lies inside the model roots, and nothing of what lies outside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.model_paths import ModelLocation, check_path, locate
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.models.inspection import describe
from headrace_engine.engine.models.prepare import prepare
from headrace_engine.errors import BadModel, HeadraceError, InvalidArgument
from headrace_engine.model_types import ModelState
from support.engine.rig import NAME, Rig

OUTSIDE = (
    "lies outside this engine's model roots; give a path inside one, or relative to one, "
    "or let its operator add one with --model-root DIR"
)


@pytest.fixture
def options(tmp_path: Path) -> EngineOptions:
    """Two roots, one of which is named by a link."""
    for name in ("models/smol", "more/other", "models-too/x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "models" / "way-out").symlink_to(tmp_path / "models-too")
    (tmp_path / "models" / "across").symlink_to(tmp_path / "more" / "other")
    (tmp_path / "named").symlink_to(tmp_path / "more")
    return EngineOptions(model_roots=(tmp_path / "models", tmp_path / "named"))


def refusal(ask: Callable[[], object], kind: type[HeadraceError] = InvalidArgument) -> str:
    """What is said of a path."""
    with pytest.raises(kind) as caught:
        ask()
    return caught.value.message


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("models", "models"),
        ("models/smol", "models/smol"),
        ("models/smol/../smol", "models/smol"),
        ("models/across", "models/across"),
        ("named/other", "more/other"),
        ("more/other", "more/other"),
    ],
)
def test_f9_an_absolute_path_inside_a_root_is_found(
    tmp_path: Path, options: EngineOptions, path: str, found: str
) -> None:
    assert locate(f"{tmp_path}/{path}", options) == ModelLocation(str(tmp_path / found))


@pytest.mark.parametrize(
    ("path", "found"), [("smol", "models/smol"), ("./smol/", "models/smol"), ("other", "more/other"), (".", "models")]
)
def test_f9_a_relative_path_is_relative_to_a_root(
    tmp_path: Path, options: EngineOptions, path: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "models-too")
    assert locate(path, options) == ModelLocation(str(tmp_path / found))


@pytest.mark.parametrize(
    "path",
    [
        "{}/models-too", "{}/models-too/x", "{}/models-too/absent", "{}/models/..", "{}/models/../models-too/x",
        "{}", "/", "/etc/shadow", "..", "../models-too", "smol/../../models-too", "/root", "/etc",
    ],
)  # fmt: skip
def test_f9_what_lies_outside_is_refused_alike_and_not_looked_at(
    tmp_path: Path, options: EngineOptions, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path.format(tmp_path)
    locate("smol", options)
    for name in ("stat", "lstat", "open", "scandir", "readlink"):
        monkeypatch.setattr(os, name, lambda *_, **__: pytest.fail("looked at a file"))
    reported = {refusal(lambda: check_path(path, options)), refusal(lambda: locate(path, options))}
    monkeypatch.undo()
    assert reported == {f"config.model_path = {path!r} {OUTSIDE}"}


@pytest.mark.parametrize("path", ["way-out", "way-out/x", "way-out/absent"])
def test_f9_a_link_out_of_a_root_is_not_followed(options: EngineOptions, path: str) -> None:
    way = "its operator may add the folder there with --model-root DIR"
    text = f"leads through a link outside this engine's model roots; {way}"
    assert refusal(lambda: locate(path, options)) == f"config.model_path = {path!r} {text}"


def test_f9_a_home_directory_is_nobodys(
    tmp_path: Path, options: EngineOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "models"))
    assert "no such file or directory" in refusal(lambda: locate("~/smol", options), BadModel)
    assert locate("~/smol", EngineOptions()) == ModelLocation("~/smol")


@pytest.mark.parametrize("path", ["/models/a\0b", "a\0b", "\ud800"])
def test_f9_what_is_no_path_is_refused(options: EngineOptions, path: str) -> None:
    assert "is not a valid path" in refusal(lambda: check_path(path, options, "model_path"))


def test_f9_a_hub_name_is_one_whatever_the_working_directory_has(
    tmp_path: Path, options: EngineOptions, monkeypatch: pytest.MonkeyPatch, model_path: Path
) -> None:
    """In a container that would be the root of the host: "etc/shadow" is a name, too."""
    shutil.copytree(model_path, tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    assert locate("owner/model", options) == ModelLocation("owner/model", is_hub_name=True)
    fetched: list[str] = []

    def fetch(name: str, *_: object) -> Path:
        fetched.append(name)
        raise BadModel("nothing is fetched here")

    monkeypatch.setattr("headrace_engine.models.loaders.hub.fetch", fetch)
    config = RuntimeConfig(model_name="m", model_path="owner/model")
    assert refusal(lambda: prepare(config, options), BadModel) == "nothing is fetched here"
    assert fetched == ["owner/model"]
    assert "no such file" in refusal(lambda: locate("owner/model", replace(options, allow_hub=False)), BadModel)


def test_f9_without_a_root_callers_name_no_paths(model_path: Path) -> None:
    options = EngineOptions(model_roots=())
    for path in (str(model_path), "/absent", "smol", "../x"):
        message = refusal(lambda: check_path(path, options))  # noqa: B023
        assert message.endswith("its operator allows that with --model-root DIR")
    assert locate("owner/model", options) == ModelLocation("owner/model", is_hub_name=True)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "additional_chat_templates"])
def test_f9_no_file_beside_a_model_leads_out_of_the_roots(
    tmp_path: Path, options: EngineOptions, model_path: Path, name: str
) -> None:
    inside, outside = tmp_path / "models" / "m", tmp_path / "models-too" / name
    shutil.copytree(model_path, inside)
    if (inside / name).exists():
        (inside / name).rename(outside)
    else:
        outside.mkdir()
    (inside / name).symlink_to(outside)
    for path in ("m", "m/model.safetensors"):
        message = refusal(lambda: locate(path, options), BadModel)  # noqa: B023
        assert message == f"{name}: is a link that leads outside this engine's model roots"


@pytest.mark.parametrize("prefix", ["../models-too/x", "/etc/shadow", "a\0"])
def test_f9_a_prefix_of_names_leads_into_no_other_folder(
    options: EngineOptions, tmp_path: Path, model_path: Path, prefix: str
) -> None:
    shutil.copytree(model_path, tmp_path / "models" / "m")
    config = RuntimeConfig(model_name="m", model_path="m", file_prefix=prefix)
    for ask in (prepare, describe):
        assert "must be the beginning of a file name" in refusal(lambda: ask(config, options))  # noqa: B023


def test_f9_messages_name_what_is_inside_by_the_given_path(options: EngineOptions, tmp_path: Path) -> None:
    for path in ("smol", "absent", str(tmp_path / "models" / "smol")):
        message = refusal(lambda: describe(RuntimeConfig(model_path=path), options), BadModel)  # noqa: B023
        assert str(tmp_path) not in message.replace(path, "")


class TestEngine:
    """Whose path it is: a caller's, or the operator's."""

    async def test_f9_a_caller_installs_by_a_relative_path_and_sees_that(self, rig: Rig) -> None:
        rig.new_engine(model_roots=(rig.model_path.parent,))
        await rig.engine.install_model(rig.config(model_path=rig.model_path.name))
        effective = rig.engine.get_model(NAME).effective
        assert effective is not None
        assert effective.config.model_path == rig.model_path.name

    async def test_f9_the_operator_names_any_path_that_callers_may_reuse(self, rig: Rig) -> None:
        rig.new_engine(model_roots=())
        await rig.engine.start([rig.config()])
        with pytest.raises(InvalidArgument, match="--model-root DIR"):
            await rig.engine.install_model(rig.config("other"))
        with pytest.raises(InvalidArgument, match="--model-root DIR"):
            await rig.engine.inspect_model(str(rig.model_path))
        await rig.engine.install_model(rig.config())
        await rig.engine.install_model(rig.config())
        assert rig.state is ModelState.INITIAL

    async def test_f9_kept_models_return_from_outside_if_the_operators(self, rig: Rig, tmp_path: Path) -> None:
        state, mine = tmp_path / "state", tmp_path / "mine"
        shutil.copytree(rig.model_path, mine / "m")
        rig.new_engine(model_roots=(mine,), state_dir=state)
        await rig.engine.start([rig.config("operators")])
        await rig.engine.install_model(rig.config("operators"))
        await rig.engine.install_model(rig.config("callers", model_path="m"))
        await rig.engine.close()
        rig.new_engine(model_roots=(), state_dir=state)
        await rig.engine.start()
        for name in ("operators", "callers"):
            async for view in rig.engine.watch_model(name):
                if view.state in (ModelState.INITIAL, ModelState.FAILED):
                    break
        assert rig.engine.get_model("operators").state is ModelState.INITIAL
        failure = rig.engine.get_model("callers").failure
        assert failure is not None
        assert "--model-root DIR" in failure.message
