"""The code of LMDeploy's page about its pipeline runs as published, in this process and against a gateway."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from support.clocks.waiting import LIMIT
from support.seeds.blocks import adapted, blocks

PAGE = "lmdeploy_pipeline.md"
*PROGRAMS, GUARD = blocks(PAGE)
MODELS = ("internlm/internlm2-chat-7b", "internlm/internlm-chat-7b")


def replacements(model: Path, address: str | None) -> Mapping[str, str]:
    """All that may change: the import root, and the model's path with the server's address."""
    here = f"'{model}'" if address is None else f"'{model}', address='{address}'"
    # Undone, each of two names must give itself again.
    paths = {f"'{name}'": here + " " * index for index, name in enumerate(MODELS)}
    return {"from lmdeploy": "from headrace.lmdeploy", **paths}


def run(block: str, changes: Mapping[str, str]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    only = {before: after for before, after in changes.items() if before in block}
    exec(compile(adapted(block, only), PAGE, "exec"), names)
    return names


def warned(block: str) -> contextlib.AbstractContextManager[Any]:
    """What the block is warned of."""
    return pytest.warns(UserWarning, match="memory_ratio") if "cache_max" in block else contextlib.nullcontext()


def test_the_page_has_these_blocks() -> None:
    assert len(PROGRAMS) == 7
    assert [line.split()[0] for line in blocks(PAGE, "shell")] == ["pip"]  # Triton, which nothing here needs.


@pytest.mark.parametrize("block", PROGRAMS, ids=range(1, 8))
def test_a_block_runs(block: str, tiny: Path, address: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with warned(block):
        names = run(block, replacements(tiny, address))
    with names["pipe"] as pipe:
        shown = capsys.readouterr().out
        if "stream_infer" in block:
            assert sorted(re.findall(r"session_id=(\d), finish_reason='", shown)) == ["0", "1"]
            assert shown.count("finish_reason=None") >= 2
            return
        responses = names["response"]
        assert shown == f"{responses}\n"
        assert [response.session_id for response in responses] == [0, 1]
        assert {response.finish_reason for response in responses} <= {"stop", "length"}
        for prompt, response in zip(("Hi, pls intro yourself", "Shanghai is"), responses, strict=True):
            ids = pipe.client.tokenize(pipe.model_name, messages=[{"role": "user", "content": prompt}]).ids
            assert response.input_token_len == len(ids)
            assert response.generate_token_len == len(response.token_ids) > 0
            assert response.text == pipe.client.detokenize(pipe.model_name, response.token_ids).text


@pytest.mark.parametrize("guarded", [False, True])
def test_a_block_is_a_script_guarded_or_not(guarded: bool, tiny: Path, tmp_path: Path) -> None:
    changes = replacements(tiny, None)
    script = adapted(PROGRAMS[0], {before: after for before, after in changes.items() if before in PROGRAMS[0]})
    file = tmp_path / "script.py"
    file.write_text(GUARD + indent(script, "    ") if guarded else script)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Response(text=") == 2
    assert done.stderr == ""
