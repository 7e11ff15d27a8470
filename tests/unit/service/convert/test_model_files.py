"""Whatever a model's files say: what is told of them is a message, or a refusal that names the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.config import RopeScaling, RopeScalingType, RuntimeConfig
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.models.inspection import describe
from headrace_engine.engine.models.prepare import prepare
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.service.convert.results import DESCRIPTION, EFFECTIVE_CONFIG
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.models.damage import edit_header, read_header
from support.models.json_files import read_json, write_json
from support.models.tiny_gguf import write_gguf
from support.models.tiny_models import make_tiny_llama

WEIGHTS = "model.safetensors"
FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", WEIGHTS)
KEYS = (
    "llama.context_length",
    "llama.block_count",
    "llama.attention.head_count",
    "llama.vocab_size",
    "llama.rope.freq_base",
    "general.alignment",
    "general.sampling.temp",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.chat_template",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64, 10**90, -(10**90)]),
    st.sampled_from([0.0, -1.5, 1e-300, 1e300, float("nan"), float("inf")]),
    st.sampled_from(["", "a", "silu", "\ud800", "\0", "x" * 5000, "{{", "../up", "{% if %}"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with all the files that are read."""
    path = make_tiny_llama(tmp_path_factory.mktemp("files") / "source")
    write_json(path / "generation_config.json", {"eos_token_id": [2, 0], "temperature": 0.7, "top_k": 5, "seed": 1})
    return path


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a value of JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(inner)[:40]:
        yield (*path, key)
        yield from places(each, (*path, key))


def put(value: Any, place: tuple[Any, ...], new: Any) -> None:
    """Replace what stands there."""
    for key in place[:-1]:
        value = value[key]
    value[place[-1]] = new


def described(path: Path) -> None:
    """Inspect and prepare a model, and write what is told of it as messages."""
    config = RuntimeConfig(model_name="m", model_path=str(path))
    options = EngineOptions(allow_hub=False)
    for ask in (lambda: DESCRIPTION.to_wire(describe(config, options)), lambda: _prepared(config, options)):
        answer = _answer(ask)
        size = len(answer) if isinstance(answer, str) else answer.ByteSize()
        assert size < (2_000 if isinstance(answer, str) else 2**22)


def _answer(ask: Callable[[], Any]) -> Any:
    """The message, or what is said in its place."""
    try:
        return ask()
    except BadModel as error:
        return error.message


def _prepared(config: RuntimeConfig, options: EngineOptions) -> Any:
    prepared = prepare(config, options)
    prepared.text.close()
    return EFFECTIVE_CONFIG.to_wire(prepared.effective)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_f5_whatever_json_files_say_is_told_or_refused(data: st.DataObject, source: Path, tmp_path: Path) -> None:
    path = shutil.copytree(source, tmp_path / "changed", dirs_exist_ok=True)
    name = data.draw(st.sampled_from(FILES))
    content = read_header(path / name) if name == WEIGHTS else read_json(path / name)
    place = data.draw(st.sampled_from([*places(content), ("seed",), ("sliding_window",), ("rope_scaling",)]))
    put(content, place, data.draw(VALUES))
    if name == WEIGHTS:
        edit_header(path / name, lambda header: (header.clear(), header.update(content)))
    else:
        write_json(path / name, content)
    described(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from(KEYS),
    value=st.one_of(
        st.none(),
        st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]),
        st.sampled_from([0.0, 1.5, float("nan"), float("inf")]),
        st.sampled_from(["", "gpt2", "x" * 5000]),
        st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=100),
        st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5), min_size=1, max_size=100),
    ),
)
def test_f5_whatever_gguf_metadata_says_is_told_or_refused(key: str, value: Any, source: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "changed.gguf", source, metadata={key: value})
    described(path)


def test_f5_a_long_name_of_an_architecture_is_cut(source: Path, tmp_path: Path) -> None:
    path = shutil.copytree(source, tmp_path / "changed")
    write_json(path / "config.json", read_json(path / "config.json") | {"architectures": ["\u0080" * 5000]})
    with pytest.raises(BadModel, match="is not supported; supported are"):
        describe(RuntimeConfig(model_name="m", model_path=str(path)), EngineOptions(allow_hub=False))
    described(path)


@pytest.mark.parametrize("factor", [2.0**23, 1e300])
def test_f5_scaling_stretches_no_further_than_the_wire(source: Path, factor: float) -> None:
    scaling = RopeScaling(RopeScalingType.LINEAR, factor)
    config = RuntimeConfig(model_name="m", model_path=str(source), rope_scaling=scaling)
    with pytest.raises(InvalidArgument, match="allowed: at most 2147483647 positions"):
        prepare(config, EngineOptions())
