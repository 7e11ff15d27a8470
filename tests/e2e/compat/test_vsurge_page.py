"""The code of vSurge's page runs as published, in this process and against a gateway."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.seeds.blocks import adapted, blocks

PAGE = "vsurge.rst"
BLOCKS = blocks(PAGE)


def replacements(model: Path, address: str | None) -> Mapping[str, str]:
    """All that may change: the import roots, the model's path, and the server's address."""
    roots = {
        "import jax\n": "from headrace.vsurge import jax\n",
        "from jax import": "from headrace.vsurge.jax import",
        "import easydel as ed": "import headrace.vsurge as ed",
    }
    there = {"seed=877,": f"seed=877, address='{address}',"} if address else {}
    return {**roots, '"Qwen/Qwen3-8B"': f'"{model}"', **there}


def run(block: str, changes: Mapping[str, str], names: dict[str, Any]) -> None:
    only = {before: after for before, after in changes.items() if before in block}
    exec(compile(adapted(block, only), PAGE, "exec"), names)


def test_the_page_has_these_blocks() -> None:
    assert len(BLOCKS) == 7


def test_the_page_runs_from_top_to_bottom(tiny: Path, address: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    changes = replacements(tiny, address)
    *parts, stop = BLOCKS
    for block in parts:
        run(block, changes, names)
    surge = names["surge"]
    effective = surge.client.get_model(surge.vsurge_name)[0].effective.config
    expected = {"max_batch": 64, "max_length": 8192, "max_prefill_tokens": 4096, "default_seed": 877}
    assert {name: effective[name] for name in expected} == expected
    assert effective["dtype"] == "BFLOAT16"
    asyncio.run(names["run_non_streaming"]())
    shown = capsys.readouterr().out
    assert re.findall(r"Non-Streaming Result for Prompt (\d):", shown) == ["1", "2"]
    assert all(float(rate) > 0 for rate in re.findall(r"Tokens per second: ([\d.]+)", shown))
    asyncio.run(names["run_streaming"]())
    updates = re.split(r"^Streaming Update for Prompt ", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    for number in ("1", "2"):
        texts = [text.removesuffix("\n") for text in updates if text.startswith(f"{number}: ")]
        assert len(texts) == len(updates) / 2 >= 1
        assert all(later.startswith(text) for text, later in pairwise(texts))
    run(stop, changes, names)
    assert surge.client.list_models() == []
    surge.close()
