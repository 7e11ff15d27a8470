"""BC-005: what is said of texts holds with every version of the tokenizers library that the engine allows."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.deployment.distributions import ROOT

TESTS = ("tests/unit/engine/text/test_detokenizer.py", "tests/unit/engine/text/test_stopping.py")
CHOSEN = "not random and not thousands and not rules_say"
"""All but those that go through thousands of lists: they look for what the versions have in common."""

pytestmark = pytest.mark.packaging


def lowest() -> str:
    """The lowest version of the library that the engine's metadata allows."""
    needs = importlib.metadata.requires("headrace-engine") or ()
    found = [re.search(r">=([\d.]+)", need) for need in needs if re.match(r"tokenizers\b", need)]
    assert len(found) == 1
    assert found[0] is not None
    return f"{found[0][1]}.0" if found[0][1].count(".") == 1 else found[0][1]


def test_bc005_texts_are_the_same_with_the_lowest_tokenizers(tmp_path: Path) -> None:
    """The suite's other tests run with the one that was installed, the highest when it was made."""
    version = lowest()
    assert version != importlib.metadata.version("tokenizers")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*install, f"tokenizers=={version}"], check=True, timeout=120)
    check = f"import tokenizers; assert tokenizers.__version__ == {version!r}, tokenizers.__file__"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", check], env=environment, check=True)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, "-k", CHOSEN]
    done = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
