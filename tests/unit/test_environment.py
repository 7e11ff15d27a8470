"""What the engine makes of its environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine import environment
from headrace_engine.errors import InvalidArgument


def test_what_is_not_set_or_empty_has_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    variables = [value for name, value in vars(environment).items() if name.endswith("_VARIABLE")]
    assert len(variables) > 5
    for given in ({}, dict.fromkeys(variables, "")):
        assert environment.memory_ratio(given) is None
        assert environment.native_folder(given) is None
        assert environment.plain_op_names(given) == environment.logits_processors(given) == []
        assert environment.forced_isa(given) == environment.named_nodes(given) == environment.hub_endpoint(given) == ""
        assert environment.announced_logs(given) == {}
        assert environment.overlaps(given) is True
        assert environment.cache_root(given) == Path("/home/me/.cache/headrace")


def test_caches_are_where_the_environment_says() -> None:
    given = {environment.CACHE_VARIABLE: "/a", "XDG_CACHE_HOME": "/b"}
    assert environment.cache_root(given) == Path("/a")
    assert environment.cache_root(given | {environment.CACHE_VARIABLE: ""}) == Path("/b/headrace")


def test_the_ratio_of_memory() -> None:
    assert environment.memory_ratio({"BFC_MEM_RATIO": "0.5"}) == 0.5


@pytest.mark.parametrize("text", ["0", "1.1", "-1", "nan", "half"])
def test_a_bad_ratio_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"BFC_MEM_RATIO = '{text}'"):
        environment.memory_ratio({"BFC_MEM_RATIO": text})


@pytest.mark.parametrize(("text", "overlapping"), [("0", False), ("1", True)])
def test_steps_overlap_or_not(text: str, overlapping: bool) -> None:
    assert environment.overlaps({environment.OVERLAP_VARIABLE: text}) is overlapping


def test_lists_are_parted() -> None:
    assert environment.plain_op_names({environment.PLAIN_VARIABLE: " a, b,,"}) == ["a", "b"]
    assert environment.logits_processors({environment.PROCESSORS_VARIABLE: " a=/x ;b=/y;"}) == ["a=/x", "b=/y"]
