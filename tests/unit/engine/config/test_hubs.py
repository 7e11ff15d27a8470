"""Which hubs callers may name: the engine asks them, from within its network and with its token."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.hubs import check_hub
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.model_types import ModelState
from support.engine.rig import Rig

MIRROR = "https://hub.example"
NAME = "owner/model"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hubs that were asked."""
    asked: list[str] = []

    def fetch(name: str, wanted: object, file_prefix: str, revision: str, address: str) -> Path:
        asked.append(address)
        raise BadModel("nothing is fetched here")

    monkeypatch.setattr("headrace_engine.models.loaders.hub.fetch", fetch)
    monkeypatch.setenv("HF_ENDPOINT", "http://own.example/")
    return asked


@pytest.mark.parametrize("hub", ["", MIRROR, MIRROR + "/", "http://own.example"])
async def test_a_caller_may_name_the_hubs_of_the_operator(rig: Rig, asked: list[str], hub: str) -> None:
    rig.new_engine(model_roots=(), hubs=(MIRROR,))
    with pytest.raises(BadModel, match="nothing is fetched here"):
        await rig.install(model_path=NAME, hub=hub)
    assert asked == [hub]


@pytest.mark.parametrize(
    "hub", ["http://169.254.169.254", MIRROR + ".evil", "https://hub.example:8080", "file:///etc", "x"]
)
async def test_no_other_hub_is_asked_for_a_caller(rig: Rig, asked: list[str], hub: str) -> None:
    rig.new_engine(model_roots=(), hubs=(MIRROR,))
    with pytest.raises(InvalidArgument, match=r"is not an allowed hub; .* --hub URL") as refused:
        await rig.install(model_path=NAME, hub=hub)
    assert [one.field for one in refused.value.violations] == ["config.hub"]
    with pytest.raises(InvalidArgument) as refused:
        await rig.engine.inspect_model(NAME, hub=hub)
    assert [one.field for one in refused.value.violations] == ["hub"]
    assert asked == []
    assert rig.engine.list_models() == []


async def test_a_kept_model_returns_only_from_a_hub_of_now(rig: Rig, asked: list[str], tmp_path: Path) -> None:
    engine = rig.new_engine(model_roots=(), hubs=(MIRROR,), state_dir=tmp_path)
    await engine.start()
    with pytest.raises(BadModel):
        await rig.install(model_path=NAME, hub=MIRROR)
    await engine.close()
    engine = rig.new_engine(model_roots=(), hubs=(), state_dir=tmp_path)
    await engine.start()
    with pytest.raises(InvalidArgument, match="is not an allowed hub"):
        await rig.install(model_path=NAME, hub=MIRROR)
    assert rig.state is ModelState.FAILED
    assert asked == [MIRROR]


async def test_the_operator_names_any_hub(rig: Rig, asked: list[str]) -> None:
    config = rig.config(model_path=NAME, hub=MIRROR)
    engine = rig.new_engine(model_roots=(), hubs=())
    await engine.start([config])
    with pytest.raises(BadModel, match="nothing is fetched here"):
        await engine.install_model(config)
    assert asked == [MIRROR]


def test_an_engine_without_hubs_takes_none(asked: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="hub access is disabled"):
        check_hub(MIRROR, EngineOptions(allow_hub=False, hubs=(MIRROR,)))
    check_hub(RuntimeConfig().hub, EngineOptions(allow_hub=False))
