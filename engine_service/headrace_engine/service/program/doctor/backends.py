"""The backends: which one computes, and why not each of the others."""

from __future__ import annotations

from collections.abc import Iterator

from headrace_engine.backends.cuda.device.cards import check_card, why_no_cuda
from headrace_engine.cuda_checked import why_unchecked
from headrace_engine.errors import HeadraceError
from headrace_engine.native import choose_isa, load
from headrace_engine.process import AUTO_BACKEND, BACKENDS
from headrace_engine.process.run import choose_backend
from headrace_engine.service.program.doctor.findings import Finding


def examine_backends(asked: str) -> Iterator[Finding]:
    """Yield a finding for each backend of this build.

    Args:
        asked: name of the backend that the command line asks for, or "auto".
    """
    taken, why = choose_backend(None) if asked == AUTO_BACKEND else (asked, "")
    for name in BACKENDS:
        problem = _problem(name)
        text = f"taken (--backend {asked})" if name == taken else _why_not_taken(name, asked, taken, why)
        if problem:
            text = f"{text}; does not work here: {problem}"
        facts = {"taken": name == taken, "asked": asked, "problem": problem}
        yield Finding(f"backend {name}", text, not problem if name == taken else None, facts)


def _why_not_taken(name: str, asked: str, taken: str, why: str) -> str:
    if asked != AUTO_BACKEND:
        return f"not taken: --backend {asked} is asked for"
    if name == "cuda":
        return f"not taken: {why_unchecked() or why}; --backend cuda asks for it"
    if name == "torch" and taken == "cuda":
        return f"not taken: auto takes cuda ({why}); --backend torch asks for it"
    if name == "torch":
        why = why_no_cuda() or "torch finds none"
        return f"not taken: auto does where there is a CUDA device, and {why}"
    return f"not taken: auto takes {taken}, as there is a CUDA device; compute_unit CPU asks for cpu"


def _problem(name: str) -> str:
    """Return why a backend cannot compute here; "" if it can."""
    try:
        if name == "cpu":
            choose_isa(load("cpu"))
        elif name == "cuda":
            check_card(0)
            load("cuda")
    except HeadraceError as error:
        return error.message
    return ""
