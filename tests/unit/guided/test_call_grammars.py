"""Answers that a grammar of calls allows are calls, as machines read them, and what they are held to is kept."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import jsonschema
import pytest
from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.calls.wanted import WantedCalls
from headrace_engine.guided.check import check
from headrace_engine.guided.guide import Guide
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_proto.pure.answers.formats import CALLS
from headrace_proto.pure.answers.harmony import FINAL
from headrace_proto.pure.limits import MAX_PARTS_BYTES
from support.models.guided_walks import ids_of
from support.parted import parted

FORMATS = [name for name, form in CALLS.items() if form.layout is not None or name == "harmony"]
SCHEMA = {
    "type": "object",
    "properties": {
        "place": {"enum": ["Rome", 'Bern\'s "x"']},
        "days": {"type": "integer"},
        "sure": {"type": "boolean"},
        "deep": {
            "type": "object",
            "properties": {"list": {"type": "array", "items": {"$ref": "#/$defs/letter"}}},
            "required": ["list"],
            "additionalProperties": False,
        },
    },
    "required": ["place", "deep"],
    "additionalProperties": False,
    "$defs": {"letter": {"enum": ["p", "q"]}},
}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "time", "parameters": EMPTY}},
]
DSML = "\uff5cDSML\uff5c"
INVOKED = f'<{DSML}invoke name="time">\n</{DSML}invoke>'


class Letters:
    """A vocabulary of bytes, and of special tokens."""

    def __init__(self, specials: list[str]) -> None:
        self.specials = {text: 256 + number for number, text in enumerate(dict.fromkeys([*specials, "<eos>"]))}
        self.pieces = [*(bytes([one]) for one in range(256)), *(text.encode() for text in self.specials)]
        self.special_ids = frozenset(self.specials.values())
        self.eos = self.specials["<eos>"]

    def encode_plain(self, text: str) -> list[int]:
        return list(text.encode())

    def ids(self, text: str) -> Iterator[int]:
        """The ids of a text, special tokens included."""
        while text:
            special = next((one for one in self.specials if text.startswith(one)), "")
            yield from [self.specials[special]] if special else text[0].encode()
            text = text[len(special) or 1 :]


def guide(letters: Letters, wanted: WantedCalls) -> Guide:
    vocabulary = Vocabulary(letters, len(letters.pieces))
    return vocabulary.guide(check(vocabulary, wanted.format()).grammar, (letters.eos,))


def wanted(calls: str, **more: Any) -> WantedCalls:
    more = {"thoughts": "think", "opened": False, "strict": ("weather", "time"), **more}
    return WantedCalls(calls=calls, tools=tuple(map(json.dumps, TOOLS)), **more)


def accepts(letters: Letters, what: WantedCalls, text: str) -> bool:
    """True if a guide allows a text, id by id, and its end."""
    following = guide(letters, what)
    for token_id in letters.ids(text):
        if token_id not in ids_of(following):
            return False
        following.take([token_id])
    return letters.eos in ids_of(following)


def drawn(letters: Letters, following: Guide, seed: int) -> str | None:
    """A random text that a guide allows; None: it did not end soon."""
    chance, text = random.Random(seed), b""
    for _ in range(600):
        allowed = ids_of(following)
        if letters.eos in allowed and (len(allowed) == 1 or chance.random() < 0.6):
            return text.decode()
        plain = [one for one in allowed if one == 10 or 32 <= one < 127] or [one for one in allowed if one < 256]
        marks = [one for one in allowed if one > 255 and one != letters.eos]
        token_id = chance.choice(marks if marks and (not plain or chance.random() < 0.5) else sorted(plain))
        text += letters.pieces[token_id]
        following.take([token_id])
    return None


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("calls", FORMATS)
def test_answers_that_must_call_satisfy_their_schema(calls: str, special: bool) -> None:
    letters = Letters([*CALLS[calls].all_marks, "<think>", "</think>"] if special else [])
    seen = 0
    for parallel in (False, True):
        vocabulary = Vocabulary(letters, len(letters.pieces))
        grammar = check(vocabulary, wanted(calls, required=True, parallel=parallel).format()).grammar
        for seed in range(4):
            text = drawn(letters, vocabulary.guide(grammar, (letters.eos,)), seed)
            found = [] if text is None else parted(calls, text, "think", tools=TOOLS)
            called = [part for part in found if isinstance(part, tuple)]
            assert "".join(part for part in found if isinstance(part, str)).strip() == ""
            assert text is None or (called if parallel else len(called) == 1)
            for name, arguments in called:
                jsonschema.validate(json.loads(arguments), SCHEMA if name == "weather" else EMPTY)
            seen += len(called)
    assert seen >= 2


def nested(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": nested(depth - 1)} if depth else {"type": "integer"}


def chain(length: int, last: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemas that each refer to the next one."""
    yield from ((f"d{number}", {"$ref": f"#/$defs/d{number + 1}"}) for number in range(length))
    yield f"d{length}", last


GOOD = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("specials", [[], ["<tool_call>", "</tool_call>"]])
@pytest.mark.parametrize(
    ("text", "optional", "one", "must"),
    [
        ("Hello < there.", True, True, False),
        (GOOD, True, True, True),
        (f"Well. {GOOD}", True, True, False),
        (f"{GOOD}\n{GOOD}", True, False, False),
        (f"{GOOD} and more", True, False, False),
        (f"<think>So <tool</think>\n\n{GOOD}", True, True, True),
        ("<tool_call>nonsense", False, False, False),
        ('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>', False, False, False),
        ('<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo"}}\n</tool_call>', False, False, False),
        ("", True, True, False),
    ],
)
def test_text_around_calls_is_free_where_none_must_come(
    specials: list[str], text: str, optional: bool, one: bool, must: bool
) -> None:
    letters = Letters(specials)
    assert accepts(letters, wanted("hermes"), text) is optional
    assert accepts(letters, wanted("hermes", parallel=False), text) is one
    assert accepts(letters, wanted("hermes", parallel=False, required=True), text) is must


@pytest.mark.parametrize("calls", [name for name in FORMATS if CALLS[name].sections])
def test_several_calls_may_have_a_section_each(calls: str) -> None:
    """As Qwen3-Coder writes them; others write one for all."""
    letters = Letters([])
    what = partial(wanted, calls, required=True, names=("time",), thoughts="")
    alone = guide(letters, what(parallel=False))
    one = next(text for seed in range(40) if (text := drawn(letters, alone, seed)) is not None)
    twice = f"{one.strip()}\n{one.strip()}"
    assert accepts(letters, what(), twice)
    assert not accepts(letters, what(parallel=False), twice)
    assert [name for name, _ in parted(calls, twice, tools=TOOLS)] == ["time", "time"]


def test_an_open_thought_ends_before_calls() -> None:
    letters = Letters([])
    what = wanted("hermes", required=True, opened=True)
    assert accepts(letters, what, f"so</think>\n{GOOD}")
    assert not accepts(letters, what, GOOD)


def test_named_functions_are_called_and_strict_ones_held() -> None:
    letters = Letters([])
    weather = '<tool_call>\n{"name": "weather", "arguments": {"anything": [1]}}\n</tool_call>'
    assert accepts(letters, wanted("hermes", strict=()), weather)
    assert not accepts(letters, wanted("hermes"), weather)
    assert not accepts(letters, wanted("hermes", strict=(), names=("time",)), weather)


@pytest.mark.parametrize(
    ("calls", "parameters", "words"),
    [
        ("glm45", {"properties": {"a": {"type": "string", "pattern": "x+"}}}, "pattern cannot be enforced"),
        ("pythonic", {"properties": {"a": {"type": "integer", "minimum": 1}}}, "minimum cannot be enforced"),
        ("pythonic", {"properties": {"a": {"$ref": "#/$defs/none"}}, "minProperties": 1}, "minProperties cannot"),
        ("pythonic", {"properties": {"a": {"$ref": "#/$defs/none"}}}, "is no schema"),
        ("pythonic", {"properties": {"a": nested(21)}}, "more than 20 deep"),
        ("pythonic", {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no schema"),
        ("pythonic", {"properties": {"a": {"$ref": "#", "type": "object"}}}, "type cannot be enforced"),
        ("pythonic", {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "allows nothing"),
        (
            "glm45",
            {"properties": dict(chain(400, {"a": {}})), "$defs": dict(chain(400, {}))},
            "more than 1048576 characters",
        ),
        ("pythonic", {"properties": 5}, "properties must be an object"),
        ("qwen3_coder", {"properties": ["a"]}, "properties must be an object"),
        ("gemma4", {"properties": {"a": {}}, "required": 5}, "required must be a list"),
        ("qwen3_coder", {"properties": {"a": {}}, "required": ["b"]}, '"b" is required'),
        (
            "pythonic",
            {"properties": {"a": {"type": "object", "properties": {"b": {}}, "required": ["c"]}}},
            '"c" is required',
        ),
        ("pythonic", {"properties": {"a": {"anyOf": 5}}}, "anyOf must be a list"),
        ("pythonic", {"properties": {"a": {"anyOf": []}}}, "anyOf must be a list"),
        ("pythonic", {"properties": {"a": {"type": 5}}}, "type must be a string"),
        ("pythonic", {"properties": {"a": {"type": []}}}, "type must be a string"),
        ("pythonic", {"properties": {"a": {"type": [["string"]]}}}, "type must be a string"),
        ("pythonic", {"properties": {"a b": {"type": "integer"}}}, '"a b" is no name of a parameter'),
        ("gemma4", {"properties": {"a": {"type": "object", "properties": {"": {}}}}}, '"" is no name of a parameter'),
        ("seed_oss", {"properties": {"a>b": {"type": "integer"}}}, '"a>b" is no name of a parameter'),
        ("seed_oss", {"properties": {"a": {"enum": ["</parameter>"]}}}, "cannot be written as texts"),
        ("gemma4", {"properties": {"a": {"enum": ['<|"|>']}}}, "a constant with"),
        ("hermes", {"properties": {"a": {"not": {}}}}, "not: list what is allowed"),
        ("hermes", {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "cannot be compiled"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(calls: str, parameters: Any, words: str) -> None:
    tool = json.dumps({"function": {"name": "f", "parameters": parameters}})
    what = WantedCalls(calls, "think", opened=False, tools=(tool,), strict=("f",))
    with pytest.raises(InvalidArgument, match=words):
        guide(Letters([]), what)


@pytest.mark.parametrize("calls", FORMATS)
def test_functions_that_machines_could_not_read_are_refused(calls: str) -> None:
    letters, outcomes = Letters([]), set[Any]()
    for name in ("get-weather", "a.b", "a b", 'a"b', "a>b", "a:b", "a\nb", "ä", "all", "n" * 300):
        tool = json.dumps({"function": {"name": name, "parameters": EMPTY}})
        what = WantedCalls(calls, "", opened=False, tools=(tool,), strict=(name,), required=True, parallel=False)
        try:
            following = partial(guide, letters, what)
            texts = [text for seed in range(8) if (text := drawn(letters, following(), seed)) is not None]
        except InvalidArgument as error:
            outcomes.add(str(error).partition(" is a ")[2])
            continue
        tools = [json.loads(tool)]
        called = [part[0] for text in texts for part in parted(calls, text, tools=tools) if isinstance(part, tuple)]
        outcomes.add(called == [name] * len(texts) != [])
    why = f"name by which no function can be called in the format {calls}, in which this model writes calls"
    assert outcomes == {why, True}


def test_marks_that_are_special_tokens_are_only_those() -> None:
    letters = Letters(["<tool_call>", "</tool_call>"])
    following = guide(letters, wanted("hermes", required=True))
    assert letters.specials["<tool_call>"] in ids_of(following)
    following.take([letters.specials["<tool_call>"]])
    assert not ids_of(following) & letters.special_ids


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("pythonic", "<|python_start|>[time()]<|python_end|>"),
        ("pythonic", "<|python_start|>[time()]"),
        ("pythonic", "<|python_tag|>[time()]"),
        ("pythonic", "[time()]"),
        ("llama3_json", '<|python_tag|>{"name": "time", "parameters": {}}'),
        ("deepseek_dsml", f"<{DSML}function_calls>\n{INVOKED}\n</{DSML}function_calls>"),
        ("deepseek_dsml", f"<{DSML}tool_calls>\n{INVOKED}\n</{DSML}tool_calls>"),
    ],
)
def test_every_way_of_marking_calls_may_be_written(calls: str, text: str) -> None:
    letters = Letters([*CALLS[calls].all_marks])
    for parallel in (False, True):
        for what in (wanted(calls, required=True, parallel=parallel), wanted(calls, parallel=parallel)):
            assert accepts(letters, what, text)
    for size in (0, 1, 3):
        assert parted(calls, text, tools=TOOLS, size=size) == [("time", "{}")]
        call, after = parted(calls, f"{text} so", tools=TOOLS, size=size)
        assert (call, after.strip()) == (("time", "{}"), "so")


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("pythonic", "\n[time()]"),
        ("pythonic", " \t\r\n\x1c[time()]"),
        ("pythonic", "\n<|python_start|>[time()]"),
        ("pythonic", "<|python_start|>\n[time()]<|python_end|>"),
        ("pythonic", " <|python_tag|>\n\n\n[time()]"),
        ("pythonic", "<think>so</think>\n\n\n[time()]"),
        ("llama3_json", '\n\n\n{"name": "time", "parameters": {}}'),
        ("llama3_json", '\t{"name": "time", "parameters": {}}'),
        ("llama3_json", '<|python_tag|> {"name": "time", "parameters": {}}'),
        ("llama3_json", '\n<|python_tag|>\t{"name": "time", "parameters": {}}'),
    ],
)
def test_white_space_may_stand_before_calls_that_are_all(calls: str, text: str) -> None:
    assert [part[0] for part in parted(calls, text, "think", tools=TOOLS) if isinstance(part, tuple)] == ["time"]
    for marks in ([], [*CALLS[calls].all_marks, "<think>", "</think>"]):
        for parallel in (False, True):
            letters, what = Letters(marks), wanted(calls, parallel=parallel)
            assert accepts(letters, what, text)
            assert not accepts(letters, what, text.replace("time", "rm"))
            assert accepts(letters, what, "\n so [time()]")


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("pythonic", "<|python_start|>[rm(x=1), rm(x=2)]"),
        ("pythonic", " <|python_tag|>\x1c[rm(x=1)]"),
        ("pythonic", "\x1f[rm(x=1)]"),
        ("pythonic", "\n<think>so</think>[rm(x=1)]"),
        ("llama3_json", '<|python_tag|>{"name": "rm", "parameters": {}}'),
        ("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'),
        ("deepseek_dsml", INVOKED.replace("time", "rm")),
        ("harmony", f"{FINAL}so<|end|><|start|>assistant<|channel|>commentary to=functions.rm<|message|>{{}}"),
    ],
)
def test_no_call_is_written_as_free_text(calls: str, text: str) -> None:
    """Also not with marks that are spelled, whether or not special tokens are such marks."""
    assert "rm" in [part[0] for part in parted(calls, text, "think", tools=TOOLS) if isinstance(part, tuple)]
    for marks in ([], [*CALLS[calls].all_marks, "<think>", "</think>"]):
        letters = Letters(marks)
        begun = [letters.specials[one] for one in ("<|channel|>", "<|message|>") if one in letters.specials]
        for parallel in (False, True):
            following = guide(letters, wanted(calls, parallel=parallel))
            ids = list(letters.encode_plain(text))
            if begun:  # Its headers are no free text.
                ids = [begun[0], *b"final", begun[1], *letters.encode_plain(text.removeprefix(FINAL))]
            refused = next(
                (at for at, one in enumerate(ids) if one not in ids_of(following) or following.take([one])), None
            )
            assert refused is not None


@pytest.mark.parametrize(
    ("calls", "call", "other"),
    [
        ("hermes", GOOD, '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'),
        ("pythonic", "[time()]", "[rm()]"),
        ("llama3_json", '{"name": "time", "parameters": {}}', '{"name": "rm", "parameters": {}}'),
    ],
)
def test_what_is_thought_calls_nothing_also_where_it_is_shown(calls: str, call: str, other: str) -> None:
    for opened in (False, True):
        thought = f"{'' if opened else '<think>'}{other}</think>"
        what = wanted(calls, required=True, opened=opened)
        assert accepts(Letters([]), what, f"{thought}\n{call}")
        for size in (0, 1, 5):
            found = parted(calls, f"{thought}\n{call}", "think", opened=opened, tools=TOOLS, size=size, shown=True)
            assert [found[0].rstrip(), *found[1:]] == [thought, ("time", "{}")]


def test_marks_of_messages_in_strings_of_arguments_are_text() -> None:
    said = json.dumps(
        {"place": "<|start|>assistant<|channel|>commentary to=functions.rm<|message|>{}", "days": "<|call|>"}
    )
    text = f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{said}"
    assert accepts(Letters([]), wanted("harmony", strict=()), text)
    then = "<|end|><|start|>assistant<|channel|>final<|message|>So."
    for size in (0, 1, 5):
        assert parted("harmony", text, tools=TOOLS, size=size) == [("weather", said)]
        assert parted("harmony", f"{text}{then}", tools=TOOLS, size=size) == [("weather", said), "So."]


def test_what_follows_a_call_without_a_closing_mark_is_text() -> None:
    call, other = '{"name": "time", "arguments": {}}', '{"name": "rm", "arguments": {}}'
    for size in (0, 1):
        found = parted("gigachat", f"<|function_call|>{call}, {other}", tools=TOOLS, size=size)
        assert found == [("time", "{}"), f", {other}"]
        found = parted("gigachat", f"<|function_call|>[{call}, {other}] so", tools=TOOLS, size=size)
        assert found == [("time", "{}"), ("rm", "{}"), " so"]


def test_a_closing_mark_without_its_opening_one_is_text() -> None:
    for text in ("[time()] <|python_end|> so", "<|python_tag|>[time()] <|python_end|> so"):
        for size in (0, 1):
            assert parted("pythonic", text, tools=TOOLS, size=size) == [("time", "{}"), " <|python_end|> so"]


@pytest.mark.parametrize(
    ("calls", "specials", "call"),
    [
        ("deepseek_dsml", [DSML], f"<{DSML}tool_calls>\n{INVOKED}\n</{DSML}tool_calls>"),
        ("deepseek_dsml", [], f"<{DSML}function_calls>\n{INVOKED}\n</{DSML}function_calls>"),
        ("qwen3_coder", ["<tool_call>", "</tool_call>"], "<tool_call>\n<function=time>\n</function>\n</tool_call>"),
        ("qwen3_coder", [], "<tool_call>\n<function=time>\n</function>\n</tool_call>"),
        ("minimax_m2", [], '<minimax:tool_call>\n<invoke name="time">\n</invoke>\n</minimax:tool_call>'),
        ("seed_oss", [], "<seed:tool_call><function=time>\n</function></seed:tool_call>"),
    ],
)
def test_text_before_a_section_is_free(calls: str, specials: list[str], call: str) -> None:
    letters = Letters(specials)
    for parallel in (False, True):
        what = wanted(calls, parallel=parallel)
        for text in ("a < b", "a <", f"a < b <c> {call}"):
            assert accepts(letters, what, text)
        assert accepts(letters, what, f"{call} and more") is parallel
        assert not accepts(letters, what, call.replace("time", "rm"))


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("kimi_k2", "Well.<|tool_calls_section_begin|>CALL<|tool_calls_section_end|>"),
        ("command_r7b", "<|START_RESPONSE|>Well.<|END_RESPONSE|>CALL"),
    ],
)
def test_marks_around_free_text_may_be_special_tokens(calls: str, text: str) -> None:
    call = {
        "kimi_k2": "<|tool_call_begin|>functions.time:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "command_r7b": '<|START_ACTION|>[{"tool_name": "time", "parameters": {}}]<|END_ACTION|>',
    }[calls]
    text = text.replace("CALL", call)
    for parallel in (False, True):
        assert accepts(Letters([*CALLS[calls].all_marks]), wanted(calls, parallel=parallel), text)
    assert parted(calls, text, tools=TOOLS) == ["Well.", ("time", "{}")]


@pytest.mark.parametrize("calls", ["kimi_k2", "deepseek_v31", "deepseek_dsml", "seed_oss"])
def test_no_mark_of_a_section_is_spelled_in_free_text(calls: str) -> None:
    letters = Letters([*CALLS[calls].all_marks])
    for mark in (mark for pair in CALLS[calls].sections for mark in pair):
        for parallel in (False, True):
            following = guide(letters, wanted(calls, parallel=parallel))
            ids = letters.encode_plain(f"So {mark}")
            assert not all(one in ids_of(following) and not following.take([one]) for one in ids)


def test_the_size_of_tools_is_that_of_their_text() -> None:
    def tool(size: int) -> str:
        head, end = '{"function": {"name": "time"}, "notes": [""', "]}"
        return head + ',""' * ((size - len(head) - len(end)) // 3) + end

    more: Any = {"opened": False, "required": True, "names": ("time",), "strict": ("time",)}
    guide(Letters([]), WantedCalls("hermes", "", tools=(tool(MAX_PARTS_BYTES),), **more))
    with pytest.raises(InvalidArgument, match=f"allowed: at most {MAX_PARTS_BYTES}"):
        guide(Letters([]), WantedCalls("hermes", "", tools=(tool(MAX_PARTS_BYTES + 4),), **more))
