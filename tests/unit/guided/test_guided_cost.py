"""The cost of formats is bounded: by refusal, by the bytes kept, and to its own request."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from headrace_engine.guided import vocabulary as vocabulary_module
from headrace_engine.guided.compiled import GROWTH, MAX_GROWTH, Compiled
from headrace_engine.guided.grammar import grammar_of
from headrace_engine.guided.guide import Guide, GuideFailed
from headrace_engine.guided.kept import KeptGrammars
from headrace_engine.guided.library import LibraryFailed
from headrace_engine.guided.time_limit import AHEAD, PER_ID, TimeLimit
from headrace_engine.guided.vocabulary import LIMITS, Vocabulary
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from llguidance import LLMatcher, LLParserLimits
from support.models.guided_walks import Walker, ids_of, refusal, schema_format
from support.models.tiny_tokenizer import VOCAB_SIZE

TESTS = Path(__file__).parents[2]
LETTERS = grammar_of(ResponseFormat(ResponseFormatKind.REGEX, "[a-z]*"))
TWICE = "start: r0\n" + "\n".join(f"r{place}: r{place + 1} r{place + 1}" for place in range(60)) + '\nr60: "a"'


def regex(text: str) -> ResponseFormat:
    return ResponseFormat(ResponseFormatKind.REGEX, text)


class TestRefusals:
    @pytest.mark.parametrize("text", ["(a{1000}){400}", "(a{1000}){800}", "(a{1000}){1000}", "((ab){300}){700}"])
    def test_b2_short_expressions_that_are_long_are_refused(self, walker: Walker, text: str) -> None:
        assert "takes too much to match: use smaller numbers" in refusal(walker, regex(text))

    def test_b2_so_are_patterns_of_a_schema(self, walker: Walker) -> None:
        refusal(walker, schema_format({"type": "string", "pattern": "^(a{1000}){700}$"}))

    def test_f11_a_grammar_that_fails_at_its_first_id_is_refused(self, walker: Walker) -> None:
        assert "too ambiguous" in refusal(walker, ResponseFormat(ResponseFormatKind.GRAMMAR, TWICE))

    @pytest.mark.parametrize(
        "text", ["(a{1000}){50}", "a{60000}", "[a-z]{0,30000}", r"(\w{1,200} ){20}", "(a|b|c){5000}"]
    )
    def test_b2_what_takes_less_is_accepted_and_usable(self, walker: Walker, text: str) -> None:
        guide = walker.guide(regex(text))
        for _ in range(20):
            guide.take([max(ids_of(guide))])
        assert ids_of(guide)


def compiled(size: int) -> Compiled:
    """Return a grammar that claims this size."""
    return Compiled(lambda: None, size)  # type: ignore[arg-type, return-value]


class TestKept:
    def test_f6_grammars_are_kept_by_their_bytes(self) -> None:
        kept = KeptGrammars(100)
        for name, size in (("a", 40), ("b", 40)):
            kept.add(name, compiled(size))
        assert kept.find("a") is not None
        kept.add("c", compiled(40))
        assert kept.size == 80
        assert (kept.find("a") is None, kept.find("b") is None) == (False, True), "what was used lately stays"
        kept.add("d", compiled(500))
        assert kept.size == 0, "what is too large is not kept, and has pushed the others out"

    def test_f6_what_is_in_use_counts_and_is_found(self) -> None:
        kept, used = KeptGrammars(100), compiled(90)
        kept.add("used", used)
        kept.add("other", compiled(50))
        assert kept.find("used") is used
        assert not kept.has_capacity("new", 20)
        assert kept.has_capacity("used", 90)
        del used
        gc.collect()
        assert kept.has_capacity("new", 20)
        assert kept.has_capacity("huge", 10_000), "alone it may have all that it needs"

    def test_f6_what_has_grown_is_made_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kept, used = KeptGrammars(1 << 40), compiled(0)
        kept.add("a", used)
        used.count(100)
        assert (used.size, kept.find("a")) == (100 * GROWTH, used)
        used.count(MAX_GROWTH // GROWTH)
        assert used.size == MAX_GROWTH
        assert kept.find("a") is None


PROGRAM = """
import sys
from pathlib import Path
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_engine.guided.check import check
from headrace_engine.guided.memory import give_back
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import load_tokenizer

files = open_model(sys.argv[1])
vocabulary = Vocabulary(load_tokenizer(files), files.spec.vocab_size, max_bytes=40 << 20)

def resident():
    give_back()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

small = check(vocabulary, ResponseFormat(ResponseFormatKind.REGEX, "ab")).size

def use(letter):
    checked = check(vocabulary, ResponseFormat(ResponseFormatKind.REGEX, f"({letter}{{1000}}){{20}}"))
    guide = vocabulary.guide(checked.grammar, (), checked.size)
    for _ in range(3):
        guide.take([3 + ord(letter)])
    return checked.size

sizes = [use(letter) for letter in "abcdefgh"]
before = resident()
sizes += [use(letter) for letter in "ijklmnopqrstuvwxyz"]
print(small, sizes[0], sum(sizes) >> 20, vocabulary.kept.size >> 20, resident() - before)
"""


def test_f6_memory_stays_flat_over_many_large_formats(tmp_path: Path) -> None:
    """Their bytes are measured; all of them together would take several times what is allowed."""
    from support.models.tiny_models import make_tiny_llama

    path = make_tiny_llama(tmp_path / "tiny")
    reported = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True, cwd=TESTS
    ).stdout
    small, large, whole, kept, grown = map(int, reported.split())
    assert small < 2 << 20
    assert 4 << 20 < large < 64 << 20
    assert whole > 120
    assert kept <= 40
    assert grown < 40


class TestOthers:
    def test_f6_a_text_beyond_limits_ends_no_other_of_its_grammar(
        self, walker: Walker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They share automata, which are unusable from then on."""
        vocabulary = Vocabulary(walker.bundle, VOCAB_SIZE)
        other, broken = vocabulary.guide(LETTERS, (2,)), vocabulary.guide(LETTERS, (2,))
        for guide in (other, broken):
            guide.take(walker.bundle.encode_plain("ab"))
        expected = ids_of(other)
        shared = {id(guide._matcher): _Broken(guide._matcher) for guide in (other, broken)}
        for guide in (other, broken):
            monkeypatch.setattr(guide, "_matcher", shared[id(guide._matcher)])
        other.take(walker.bundle.encode_plain("c"))
        assert ids_of(other) == expected
        assert vocabulary.guide(LETTERS, (2,))._compiled is not broken._compiled, "it is compiled anew"

    def test_f6_slow_grammars_are_not_compiled_in_mid_text(self, walker: Walker) -> None:
        guide = Vocabulary(walker.bundle, VOCAB_SIZE).guide(LETTERS, (2,), seconds=0.2)
        guide._matcher = _Broken(guide._matcher)  # type: ignore[assignment]
        with pytest.raises(GuideFailed):
            guide.take(walker.bundle.encode_plain("c"))

    def test_a_long_text_from_elsewhere_is_taken_with_new_fuel(self, walker: Walker) -> None:
        wanted = regex("(.*a.{9}b)*")
        guide = walker.guide(wanted)
        ids: list[int] = []
        for place in range(400):
            allowed = sorted(ids_of(guide) - {2})
            ids.append(allowed[place * 7919 % len(allowed)])
            guide.take(ids[-1:])
        late = walker.guide(wanted)
        late.take(ids)
        assert ids_of(late) == ids_of(guide)


class _Broken:
    """A matcher whose automata are beyond their limits."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def is_error(self) -> bool:
        return True

    def get_error(self) -> str:
        return "lexer error: too many states: 30000 >= 30000"

    def __getattr__(self, name: str) -> object:
        return getattr(self._matcher, name)


class TestTime:
    """The time that a text takes from the steps that it shares."""

    def test_each_id_has_its_time_and_a_text_some_ahead(self) -> None:
        now = [0.0]
        limit = TimeLimit(lambda: now[0])
        for seconds, over in ((AHEAD + PER_ID / 2, False), (PER_ID, False), (2 * PER_ID, True)):
            limit.begin(1)
            now[0] += seconds
            assert limit.is_over is over
            limit.end()

    def test_what_quick_ids_leave_is_kept_up_to_a_limit(self) -> None:
        now = [0.0]
        limit = TimeLimit(lambda: now[0])
        for _ in range(100):
            limit.begin(10)
            limit.end()
        limit.begin(1)
        now[0] += AHEAD + 2 * PER_ID
        assert limit.is_over

    def test_a_text_that_takes_too_long_fails_alone(self, walker: Walker) -> None:
        vocabulary, seconds = Vocabulary(walker.bundle, VOCAB_SIZE), iter([0.0, 0.0, 0.0, 0.0, 2 * AHEAD])
        other, slow = vocabulary.guide(LETTERS, (2,)), vocabulary.guide(LETTERS, (2,))
        slow._time = TimeLimit(lambda: next(seconds))
        slow.take(walker.bundle.encode_plain("a"))
        with pytest.raises(GuideFailed, match="too long"):
            slow.take(walker.bundle.encode_plain("b"))
        other.take(walker.bundle.encode_plain("ab"))
        assert ids_of(other)
        assert vocabulary.guide(LETTERS, (2,))._compiled is other._compiled, "its automata are as good as before"

    def test_a_format_whose_first_ids_take_too_long_is_refused(
        self, walker: Walker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(TimeLimit, "is_over", True)
        assert "can be read in one way" in refusal(walker, regex("[a-z]*"))

    @pytest.mark.parametrize("rest", ["/[a-z]/", "s s s | /(?s:.)/"])
    def test_an_ambiguous_text_ends_and_is_not_read_twice(
        self, walker: Walker, monkeypatch: pytest.MonkeyPatch, rest: str
    ) -> None:
        """Its items grow with the square of the text: automata of its own would not help."""
        monkeypatch.setattr(vocabulary_module, "LIMITS", LLParserLimits(max_items_in_row=100, step_max_items=2_000))
        monkeypatch.setattr(vocabulary_module, "LLMatcher", compiler := Mock(wraps=LLMatcher))
        vocabulary = Vocabulary(walker.bundle, VOCAB_SIZE)
        guide = vocabulary.guide(f"start: s\ns: s s | {rest}", (2,))
        letter = walker.bundle.encode_plain("a")
        with pytest.raises(GuideFailed, match=r"Too many items|Current row has"):
            for _ in range(200):
                guide.take(letter)
        assert compiler.call_count == 1
        assert guide._compiled.sound


class TestLibrary:
    def test_f11_a_panic_is_a_refusal(self, walker: Walker, monkeypatch: pytest.MonkeyPatch) -> None:
        class PanicException(BaseException):
            """As pyo3 has it, which cannot be imported."""

        def panic(*_: object, **__: object) -> None:
            raise PanicException("index out of bounds")

        monkeypatch.setattr("headrace_engine.guided.vocabulary.LLMatcher", panic)
        assert "the parser cannot read it" in refusal(walker, regex("a"))
        with pytest.raises(GuideFailed):
            walker.vocabulary.guide("never seen", ())

    def test_f11_who_ends_the_process_is_heard(self, walker: Walker, monkeypatch: pytest.MonkeyPatch) -> None:
        def end(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("headrace_engine.guided.vocabulary.LLMatcher", end)
        with pytest.raises(KeyboardInterrupt):
            walker.why_not(regex("a"))

    def test_a_dead_end_is_no_fault(self, bundle: TokenizerBundle) -> None:
        """No id goes on after "a": nothing is left, as with any other mask."""
        vocabulary = Vocabulary(bundle, VOCAB_SIZE)
        guide = vocabulary.guide('start: "a" c\nc: d\nd: c', (2,))
        guide.take(bundle.encode_plain("a"))
        assert ids_of(guide) == set()
        assert isinstance(guide, Guide)

    def test_limits_are_those_that_were_measured(self) -> None:
        lexer = LIMITS.initial_lexer_fuel, LIMITS.step_lexer_fuel, LIMITS.max_lexer_states
        assert lexer == (250_000, 200_000, 30_000)
        assert (LIMITS.max_items_in_row, LIMITS.step_max_items) == (700, 10_000)

    def test_what_cannot_be_compiled_says_why(self, walker: Walker) -> None:
        with pytest.raises(LibraryFailed):
            walker.vocabulary.compile("start: absent")
