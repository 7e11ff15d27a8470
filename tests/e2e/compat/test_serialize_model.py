"""SerializeModel over a whole engine: models in folders and in memory are used as the originals are."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from headrace import Client, InvalidRequestError, StateError
from headrace.aio import AsyncClient
from headrace.model_types import SerializedModel
from support.clocks.waiting import wait_until

QUANTIZED = [{}, {"weight_quant": "INT8"}, {"weight_quant": "INT4", "weight_quant_group_size": 32}]


@pytest.fixture
def client(address: str | None) -> Iterator[Client]:
    with Client(address or "inprocess:") as client:
        yield client


def write(client: Client, name: str, path: Path, **fields: Any) -> SerializedModel:
    *_, last = client.serialize_model(name, str(path), **fields)
    assert last.failure is None
    assert last.model is not None
    return last.model


def answer(client: Client, path: str, **fields: Any) -> tuple[list[int], list[float]]:
    """Ids and logprobs of a model, which is released afterwards."""
    client.install_model("m", path, max_length=64, **fields)
    client.start_model("m")
    _, queue = client.start_request("m", "Once upon a time", top_k=1, logprobs=True, max_new_tokens=16)
    elements = list(queue)
    client.stop_model("m")
    client.release_model("m")
    ids = [token for each in elements for token in each.ids_from_generate]
    return ids, [logprob for each in elements for logprob in each.token_logprobs_list]


@pytest.mark.parametrize("quant", QUANTIZED, ids=["numbers", "INT8", "INT4"])
def test_a_written_model_answers_as_the_original(
    client: Client, tiny: Path, tmp_path: Path, quant: dict[str, Any]
) -> None:
    """To the last bit, and without the original files."""
    moved = shutil.copytree(tiny, tmp_path / "source")
    expected = answer(client, str(moved), **quant)
    in_memory = write(client, "copy", moved, **quant)
    in_folder = write(client, "copy", moved, output_dir=str(tmp_path / "out"), **quant)
    assert in_memory == SerializedModel("memory:copy", "copy", True)
    assert in_folder == SerializedModel(str(tmp_path / "out"), "copy", True)
    shutil.rmtree(moved)
    for model in (in_memory, in_folder):
        assert client.inspect_model(model.path).format == "HEADRACE"
        assert answer(client, model.path, file_prefix=model.file_prefix) == expected
    client.free_serialized_model("copy")


def test_steps_tell_engine_and_progress(client: Client, tiny: Path) -> None:
    steps = list(client.serialize_model("copy", str(tiny)))
    client.free_serialized_model("copy")
    assert len({step.engine for step in steps}) == 1
    assert {step.progress.phase for step in steps if step.progress} <= {"CONVERTING"}
    assert [step.model is not None for step in steps] == [*[False] * (len(steps) - 1), True]


def test_existing_files_are_kept(client: Client, tiny: Path, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"output_dir": str(tmp_path), "skip_if_exists": True}
    assert write(client, "m", tiny, **fields).written
    assert not write(client, "m", tiny, **fields).written
    assert write(client, "m", tiny, weight_quant="INT8", **fields).written


def test_memory_is_freed_once_no_model_needs_it(client: Client, tiny: Path) -> None:
    path = write(client, "copy", tiny).path
    client.install_model("m", path, max_length=64)
    client.free_serialized_model("copy")
    client.start_model("m")
    client.stop_model("m")
    client.start_model("m")
    client.stop_model("m")
    client.release_model("m")
    with pytest.raises(StateError, match="no such model is in memory; it ends with its engine, or was freed"):
        client.inspect_model(path)
    client.free_serialized_model("copy")


def test_no_more_than_eight_models_are_in_memory(client: Client, tiny: Path) -> None:
    names = [f"copy-{number}" for number in range(8)]
    for name in names:
        write(client, name, tiny)
    with pytest.raises(StateError, match=r"8 models are in memory \(copy-0, .*copy-7\), and no more may be") as refused:
        write(client, "copy-8", tiny)
    assert refused.value.reason == "OUT_OF_MEMORY"
    assert write(client, "copy-7", tiny).written
    for name in names:
        client.free_serialized_model(name)
    write(client, "copy-8", tiny)
    client.free_serialized_model("copy-8")


def test_calls_at_once_take_turns(client: Client, tiny: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        made = list(threads.map(lambda _: write(client, "m", tiny, output_dir=str(tmp_path)), range(3)))
    assert len(set(made)) == 1


def test_nothing_stays_after_an_engine_in_this_process(tiny: Path) -> None:
    before = set(Path(tempfile.gettempdir()).glob("headrace-memory-*"))
    with Client("inprocess:") as client:
        write(client, "copy", tiny)
        assert set(Path(tempfile.gettempdir()).glob("headrace-memory-*")) > before
    assert set(Path(tempfile.gettempdir()).glob("headrace-memory-*")) <= before


def test_a_call_that_is_closed_leaves_nothing(client: Client, tiny: Path, tmp_path: Path) -> None:
    steps = client.serialize_model("m", str(tiny), output_dir=str(tmp_path))
    steps.close()
    wait_until(lambda: not any("part" in file.name for file in tmp_path.iterdir()), "unfinished files are left")
    assert {file.suffix for file in tmp_path.iterdir()} in (set(), {".asmodel", ".asparam"})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_batch": 4}, "max_batch"), ({"name": "a/b"}, "name"), ({"name": ".."}, "name"), ({"name": ""}, "name"),
        ({"format": "GGUF"}, "format"), ({"path": "memory:x"}, "path"), ({"weight_quant_group_size": 5}, "group_size"),
        ({"output_dir": "a\0b"}, "output_dir"), ({"output_dir": "/proc/x"}, "output_dir"),
        ({"file_prefix": "../x"}, "file_prefix"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_by_name(
    client: Client, tiny: Path, fields: dict[str, Any], field: str
) -> None:
    given = {"name": "m", "path": str(tiny), **fields}
    with pytest.raises(InvalidRequestError, match=field):
        list(client.serialize_model(given.pop("name"), given.pop("path"), **given))


@pytest.mark.parametrize("path", ["memory:nothing", "memory:../x", "memory:", "memory:.."])
def test_a_path_in_memory_leads_nowhere_else(client: Client, path: str) -> None:
    with pytest.raises((StateError, InvalidRequestError), match="no such"):
        client.inspect_model(path)


def test_a_model_that_is_none_is_told(client: Client, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="directory is empty"):
        list(client.serialize_model("m", str(tmp_path)))


async def test_the_same_awaited(address: str | None, tiny: Path) -> None:
    async with AsyncClient(address or "inprocess:") as client:
        steps = [step async for step in client.serialize_model("copy", str(tiny))]
        assert steps[-1].model == SerializedModel("memory:copy", "copy", True)
        await client.free_serialized_model("copy")
