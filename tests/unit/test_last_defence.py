"""Whoever is the last to catch failures catches panics of native libraries too, which are no `Exception`."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import headrace
import headrace_engine
import headrace_gateway
import headrace_proto
from headrace_proto.pure.faults import is_fault

PACKAGES = [Path(package.__file__).parent for package in (headrace, headrace_engine, headrace_gateway, headrace_proto)]

CATCHES_LESS = {
    "template.py": "a template is Python alone, in a process of its own",
    "user_kernels.py": "a compiler's failure; what else comes is caught where the core is read",
    "ebnf.py": "a converter in Python alone; what else comes is caught where the work was begun",
}
"""Files in which `except Exception` may stand without another net in the same place, and why."""


class Panic(BaseException):
    """What native libraries raise."""


def handlers() -> list[tuple[Path, ast.Try, ast.ExceptHandler]]:
    paths = [path for root in PACKAGES for path in root.rglob("*.py") if "_pb2" not in path.name]
    trees = [(path, ast.parse(path.read_text())) for path in paths]
    tries = [(path, node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Try)]
    return [(path, node, handler) for path, node in tries for handler in node.handlers]


def names(handler: ast.ExceptHandler) -> set[str]:
    """What a handler catches; "BaseException" where it names nothing."""
    if handler.type is None:
        return {"BaseException"}
    return {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}


def test_f2_whoever_catches_every_exception_catches_panics_too() -> None:
    found = [
        f"{path}:{handler.lineno}"
        for path, node, handler in handlers()
        if "Exception" in names(handler)
        and not any("BaseException" in names(each) for each in node.handlers)
        and path.name not in CATCHES_LESS
    ]
    assert not found, "catch BaseException, and raise again what is no fault (is_fault)"


def test_f2_whoever_catches_panics_lets_wishes_to_end_through() -> None:
    """It raises again, asks what it is, or hands it on to somebody who does."""
    found = []
    for path, _, handler in handlers():
        if "BaseException" in names(handler):
            raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
            hands_on = handler.name is not None and any(
                isinstance(node, ast.Name) and node.id == handler.name for node in ast.walk(handler)
            )
            if not raises and not hands_on:
                found.append(f"{path}:{handler.lineno}")
    assert not found


def test_what_is_a_fault() -> None:
    assert all(map(is_fault, (Panic(), ValueError(), TimeoutError(), MemoryError())))
    assert not any(map(is_fault, (asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(), GeneratorExit())))
