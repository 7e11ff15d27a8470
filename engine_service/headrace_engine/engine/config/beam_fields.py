"""Beam search in a generation config: what it needs, and what it does not go with."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from headrace_engine.errors import FieldViolation, InvalidArgument
from headrace_engine.generation_config import BeamStopping, GenerationConfig


def with_beams(sent: GenerationConfig, joined: GenerationConfig) -> GenerationConfig:
    """Check the fields of a beam search, and return the config with those that follow from it.

    Args:
        joined: the config that was sent, with defaults.

    Raises:
        InvalidArgument: naming field and value.
    """
    beams, n = joined.num_beams or 1, joined.n or 1
    if beams == 1:
        if sent.beam_stopping not in (None, BeamStopping.HEURISTIC):
            _refuse("beam_stopping", f"= {sent.beam_stopping} needs num_beams above 1")
        return joined
    if n > beams:
        _refuse("n", f"= {n} is more than num_beams = {beams}: a beam search finds one text for each beam")
    if sent.best_of not in (None, n):
        _refuse("best_of", f"= {sent.best_of} does not go with num_beams = {beams}: it returns the best n already")
    if sent.do_sample:
        _refuse("do_sample", f"= True does not go with num_beams = {beams}: beams are not sampled", "NOT_SUPPORTED")
    if joined.enable_tensors_from_model_inference:
        name = "enable_tensors_from_model_inference"
        _refuse(name, f"= True is not supported with num_beams = {beams}", "NOT_SUPPORTED")
    return replace(joined, do_sample=False)


def _refuse(name: str, text: str, reason: str = "INVALID_FIELD") -> NoReturn:
    raise InvalidArgument(f"{name} {text}", reason=reason, violations=[FieldViolation(f"config.{name}", text)])


def has_beams(config: GenerationConfig) -> bool:
    """True if a beam search finds the texts."""
    return (config.num_beams or 1) > 1


def computed_together(config: GenerationConfig) -> int:
    """Return the number of sequences that a request computes at once: beams, candidates, or what it returns."""
    return max(config.n or 1, config.best_of or 1, config.num_beams or 1)
