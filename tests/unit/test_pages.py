"""Names of code that pages quote are names of today's code."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_OTHERS = {
    "docs/kubernetes.md",
    "docs/metrics.md",
    "docs/migrating-from-tgi.md",
    "docs/model-configs.md",
    "docs/operations.md",
    "docs/other-fronts.md",
    "docs/proxies.md",
    "docs/traces.md",
}
"""Pages that quote settings of other programs, and metrics, whose names are put together where they are used."""

FOREIGN = {"vpdpbusd", "vpmaddwd", "xe2", "jnp", "bnb_4bit_use_double_quant", "bc024"}
"""Instructions, names in other programs, and an example of the name of a case."""

_CODE = re.compile(r"\.(py|h|cpp|cu|inl|proto|sh|toml|cmake|yml)$|Makefile$|Dockerfile$|CMakeLists\.txt$")
_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def tracked(*patterns: str) -> list[str]:
    return subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True).split()


PAGES = sorted({"ARCHITECTURE.md", "README.md", *tracked("docs/*.md")})


def quoted(page: str) -> set[str]:
    """What a page has between backticks, without blocks of code."""
    text = _BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return set(re.findall(r"`([^`\n]+)`", text))


@cache
def words() -> set[str]:
    """All words of the code, and of the names of files."""
    files = [file for file in tracked() if ROOT / file != Path(__file__)]
    texts = [(ROOT / file).read_text(encoding="utf-8", errors="ignore") for file in files if _CODE.search(file)]
    return set(re.findall(r"\w+", "\n".join([*texts, *files])))


@cache
def members() -> dict[str, set[str]]:
    """Names in the classes of the product, with those of the classes that they derive from."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for file in tracked("*.py"):
        if not file.startswith(("tests/", "bench/")):
            for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    own.setdefault(node.name, set()).update(_names(node))
                    bases.setdefault(node.name, set()).update(
                        re.findall(r"\w+", " ".join(map(ast.unparse, node.bases)))
                    )

    def whole(name: str, seen: tuple[str, ...] = ()) -> set[str]:
        over = [whole(base, (*seen, name)) for base in bases.get(name, ()) if base not in seen]
        return own.get(name, set()).union(*over)

    return {name: whole(name) for name in own}


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield part.name
        elif isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield part.id if isinstance(part, ast.Name) else part.attr


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OF_OTHERS])
def test_each_word_of_code_on_a_page_is_in_the_code(page: str) -> None:
    found = {word for text in quoted(page) for word in re.findall(r"(?<![\w*…])[A-Za-z]\w*[A-Za-z0-9](?![\w*])", text)}
    assert found - words() - FOREIGN == set()


@pytest.mark.parametrize("page", PAGES)
def test_each_member_of_a_class_on_a_page_is_there(page: str) -> None:
    pairs = {pair for text in quoted(page) for pair in re.findall(r"\b([A-Z]\w+)\.([A-Za-z_]\w*)", text)}
    assert [f"{name}.{member}" for name, member in pairs if member not in members().get(name, {member})] == []
