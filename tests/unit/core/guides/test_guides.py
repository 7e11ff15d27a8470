"""Guides are compiled in a thread, each once, and a failure ends its own sequence alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from headrace_engine.core.guides.compiler import IDLE_WAIT, Guides
from headrace_engine.guided.grammar import grammar_of
from headrace_engine.guided.guide import Guide
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_engine.sampling_params import SamplingParams
from support.clocks.waiting import LIMIT
from support.models.guided_walks import ids_of
from support.models.tiny_models import make_tiny_llama
from support.models.tiny_tokenizer import VOCAB_SIZE

EOS = 2
YES_OR_NO = grammar_of(ResponseFormat(ResponseFormatKind.CHOICE, choices=("yes", "no")))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> TokenizerBundle:
    return load_tokenizer(open_model(str(make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny"))))


class SlowVocabulary(Vocabulary):
    """Compiles when the test allows it."""

    def __init__(self, bundle: TokenizerBundle) -> None:
        super().__init__(bundle, VOCAB_SIZE)
        self.go = threading.Event()

    def guide(self, grammar: str, eos_ids: tuple[int, ...], size: int = 0, seconds: float = 0.0) -> Guide:
        assert self.go.wait(LIMIT)
        return super().guide(grammar, eos_ids, size, seconds)


@pytest.fixture
def vocabulary(bundle: TokenizerBundle) -> SlowVocabulary:
    return SlowVocabulary(bundle)


@pytest.fixture
def guides(vocabulary: SlowVocabulary) -> Iterator[Guides]:
    guides = Guides(lambda: vocabulary)
    yield guides
    vocabulary.go.set()
    guides.close()


def request(key: int, grammar: str = YES_OR_NO, generated: tuple[int, ...] = (), group: int = 0) -> AddSequence:
    sampling = SamplingParams()
    return AddSequence(key, (1,), sampling, 10, generated=generated, group=group, eos_ids=(EOS,), grammar=grammar)


def test_sequences_are_ready_when_guides_are_compiled(guides: Guides, vocabulary: SlowVocabulary) -> None:
    for key in (1, 2):
        guides.begin(request(key))
    assert list(guides.ready(block=False)) == []
    assert len(guides) == 2
    vocabulary.go.set()
    assert list(made(guides)) == [1, 2]


def made(guides: Guides) -> dict[int, Guide | Exception | None]:
    """Collect all of them, by key."""
    found: dict[int, Guide | Exception | None] = {}
    while guides:
        for request, each in guides.ready(block=True):
            found[request.key] = each if isinstance(each, Exception) else each.guide
    return found


def test_what_was_generated_before_is_taken(
    guides: Guides, vocabulary: SlowVocabulary, bundle: TokenizerBundle
) -> None:
    vocabulary.go.set()
    guides.begin(request(1, generated=tuple(bundle.encode_plain("ye"))))
    (guide,) = made(guides).values()
    assert isinstance(guide, Guide)
    assert ids_of(guide) == set(bundle.encode_plain("s"))


def test_what_is_dropped_is_never_ready(guides: Guides, vocabulary: SlowVocabulary) -> None:
    for key in (1, 2, 3):
        guides.begin(request(key))
    for key in (1, 3, 99):
        guides.drop(key)
    vocabulary.go.set()
    assert list(made(guides)) == [2]
    assert len(guides) == 0


def test_a_grammar_that_does_not_compile_costs_one_sequence(guides: Guides, vocabulary: SlowVocabulary) -> None:
    vocabulary.go.set()
    guides.begin(request(1, grammar="nonsense"))
    guides.begin(request(2))
    found = made(guides)
    assert isinstance(found[1], Exception)
    assert isinstance(found[2], Guide)


def test_a_group_waits_for_the_last_of_its_guides(
    guides: Guides, vocabulary: SlowVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while some are compiled: an idle core does not spin."""
    firsts = iter(range(2))
    compiles = vocabulary.guide

    def guide(grammar: str, eos_ids: tuple[int, ...], size: int, seconds: float) -> Guide:
        return Vocabulary.guide(vocabulary, grammar, eos_ids) if next(firsts, 2) < 2 else compiles(grammar, eos_ids)

    monkeypatch.setattr(vocabulary, "guide", guide)
    for key in (1, 2, 3):
        guides.begin(request(key, group=1))
    guides.begin(request(4))
    deadline = time.monotonic() + LIMIT
    while sum(future.done() for _, future in guides._pending.values()) < 2:
        assert time.monotonic() < deadline
    before = time.monotonic()
    assert list(guides.ready(block=True)) == []
    assert time.monotonic() - before >= IDLE_WAIT * 0.9
    vocabulary.go.set()
    assert list(made(guides)) == [1, 2, 3, 4]
