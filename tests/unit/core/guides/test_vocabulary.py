"""Building a vocabulary starts before the plan is known; it is used if it fits the plan's model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from headrace_engine.config import ModelFormat
from headrace_engine.errors import BadModel
from headrace_engine.guided.grammar import grammar_of
from headrace_engine.guided.guide import Guide
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process.vocabulary import BegunVocabulary
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from support.models.tiny_models import make_tiny_llama

EOS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("vocabulary") / "tiny")


@pytest.fixture
def plan(folder: Path) -> CorePlan:
    return CorePlan(str(folder), ModelFormat.HF)


def guide(vocabulary: BegunVocabulary) -> Guide:
    wanted = ResponseFormat(ResponseFormatKind.CHOICE, choices=("a", "b"))
    return vocabulary.maker().guide(grammar_of(wanted), (EOS,))


def test_one_that_was_begun_early_is_that_of_the_plan(folder: Path, plan: CorePlan) -> None:
    early = BegunVocabulary.at(str(folder))
    assert early.fits(plan)
    assert guide(early).allowed == guide(BegunVocabulary.of(plan)).allowed


@pytest.mark.parametrize("other", [{"path": "/elsewhere"}, {"format": ModelFormat.GGUF}, {"file_prefix": "b"}])
def test_one_of_another_model_is_not(folder: Path, plan: CorePlan, other: dict[str, object]) -> None:
    assert not BegunVocabulary.at(str(folder)).fits(replace(plan, **other))  # type: ignore[arg-type]


def test_an_unreadable_vocabulary_fits_nothing_and_says_why(tmp_path: Path) -> None:
    vocabulary = BegunVocabulary.at(str(tmp_path / "nothing"))
    assert not vocabulary.fits(CorePlan(str(tmp_path / "nothing"), ModelFormat.HF))
    with pytest.raises(BadModel):
        vocabulary.maker()


def test_a_missing_tokenizer_is_reported_to_the_caller(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    vocabulary = BegunVocabulary.at(str(folder))
    assert vocabulary.fits(CorePlan(str(folder), ModelFormat.HF))
    with pytest.raises(BadModel, match="no tokenizer"):
        vocabulary.maker()


def test_any_failure_of_its_thread_reaches_the_caller(plan: CorePlan) -> None:
    def exits() -> NoReturn:
        raise SystemExit("enough")

    vocabulary = BegunVocabulary(exits)
    assert not vocabulary.fits(plan)
    with pytest.raises(RuntimeError, match="SystemExit: enough"):
        vocabulary.maker()
