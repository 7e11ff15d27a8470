"""Files that were made to harm cost little time and memory, and are refused by name."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.models.inspection import describe
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.loaders.gguf_header import read_header
from headrace_engine.models.loaders.json_files import MAX_VALUES, parse_object
from headrace_engine.models.tokenizer import load_tokenizer
from support.models.damage import bounded_memory, edit_json, refusal
from support.models.tiny_models import make_tiny_gguf
from unit.models.conftest import Copy

WEIGHTS = "model.safetensors"
MIB = 2**20


def write_header(folder: Path, header: str) -> None:
    """Give the model weights that begin with this header."""
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header.encode())


def entry(shape: str) -> str:
    """A header of one tensor, whose shape is written so."""
    return f'{{"a": {{"dtype": "F32", "data_offsets": [0, 4], "shape": [{shape}]}}}}'


class Counted(str):
    """A name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class TestHeaders:
    def test_f3_a_key_that_stands_twice_is_found_in_linear_time(self) -> None:
        """The names are compared a few times each, and not each with all others."""
        from headrace_engine.models.loaders.json_files import _unique

        names = [Counted(f"k{number}") for number in range(5000)]
        Counted.compared = 0
        with pytest.raises(BadModel, match="'k4999' stands twice"):
            _unique([(name, 1) for name in [*names, names[-1]]], "model.safetensors")
        assert Counted.compared < 10 * len(names)

    @pytest.mark.parametrize(
        ("header", "words"),
        [
            (entry(", ".join(["9" * 4000] * 800)), "a number of 4000 digits; allowed: at most 100"),
            (entry("9" * 50), "not a list of sizes from 0 to 9223372036854775807"),
            (entry(", ".join([str(2**62)] * 1000)), "tensor a has 1000 dimensions; allowed: at most 8"),
            (entry(", ".join([str(2**62)] * 8)), "tensor a spans 4 bytes"),
            (entry("[" * 100 + "]" * 100), "values are nested more than 64 deep"),
            ('{"a":' * 5000 + "1" + "}" * 5000, "values are nested more than 64 deep"),
            (f'{{"{"n" * 300}": 1}}', "a tensor's name has 300 characters; allowed: at most 256"),
            ('{"a": {"dtype": "\\ud800"}}', "half a surrogate pair"),
        ],
    )
    def test_f3_numbers_and_depths_beyond_a_file_are_refused(
        self, copy: Copy, llama: Path, header: str, words: str
    ) -> None:
        path = copy(llama)
        write_header(path, header)
        message = refusal(path)
        assert message.startswith(WEIGHTS)
        assert words in message
        assert len(message) < 1000

    def test_f3_more_values_than_any_file_has_are_only_counted(self) -> None:
        content = b'{"a": [' + b"1," * MAX_VALUES + b"1]}"
        with bounded_memory(MIB), pytest.raises(BadModel, match=f"allowed: at most {MAX_VALUES}"):
            parse_object(content, "config.json")

    def test_f3_numbers_that_configs_hold_are_taken(self) -> None:
        """Transformers writes a missing limit as 1e30, digit by digit."""
        large = int(1e30)
        assert parse_object(json.dumps({"model_max_length": large}).encode(), "a.json") == {"model_max_length": large}

    def test_f3_a_file_is_no_larger_than_what_is_read_of_it(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        os.truncate(path / "config.json", 2**40)
        with bounded_memory(MIB):
            assert refusal(path).startswith("config.json: cannot be read: it has 1099511627776 bytes; allowed")


class TestGgufHeaders:
    def test_f4_a_file_with_holes_buys_no_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "holes.gguf"
        path.write_bytes(gguf_array(kind=0, count=64 * MIB))
        os.truncate(path, 2**32)
        with bounded_memory(4 * MIB):
            assert refusal(path) == "holes.gguf: has 67108864 entries of a; allowed: at most 4194304"

    def test_f4_arrays_count_together(self, tmp_path: Path) -> None:
        path = tmp_path / "arrays.gguf"
        one = gguf_text("a") + struct.pack("<IIQ", 9, 0, 2**22) + b"\0" * 2**22
        other = gguf_text("b") + struct.pack("<IIQ", 9, 0, 1) + b"\0"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + one + other)
        assert "4194305 entries of arrays up to b" in refusal(path)

    def test_f4_headers_are_bounded(self, tmp_path: Path) -> None:
        path = tmp_path / "long.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**30))
        os.truncate(path, 2**32)
        with bounded_memory(4 * MIB):
            assert "bytes or more; allowed: at most 100000000" in refusal(path)

    def test_f4_an_alignment_moves_no_header_beyond_the_bound(self, tmp_path: Path) -> None:
        path = tmp_path / "aligned.gguf"
        pair = gguf_text("general.alignment") + struct.pack("<IQ", 10, 2**40)
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
        assert "its header has 1099511627776 bytes or more" in refusal(path)

    def test_f4_numbers_take_what_they_take_in_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "numbers.gguf"
        path.write_bytes(gguf_array(kind=0, count=2**22) + b"\7" * 2**22)
        with bounded_memory(16 * MIB):
            numbers = read_header(path).metadata["a"]
        assert len(numbers) == 2**22
        assert set(numbers) == {7}

    @pytest.mark.parametrize(("pairs", "tensors"), [(2**13, 0), (0, 2**18)])
    def test_f4_counts_beyond_any_model_are_refused(self, tmp_path: Path, pairs: int, tensors: int) -> None:
        path = tmp_path / "counts.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs))
        os.truncate(path, 2**32)
        with bounded_memory(4 * MIB):
            assert "allowed: at most" in refusal(path)


class TestNumbersOfTheWire:
    @pytest.mark.parametrize(
        "field", ["max_position_embeddings", "vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"]
    )
    def test_f5_a_number_that_the_wire_does_not_hold_is_refused(self, copy: Copy, llama: Path, field: str) -> None:
        path = copy(llama)
        edit_json(path / "config.json", **{field: 2**32})
        assert refusal(path) == f"config.json: {field} = 4294967296 must be an integer from 1 to 2147483647"

    def test_f5_heads_may_be_no_wider_than_the_wire_holds(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_json(path / "config.json", head_dim=2**30, num_attention_heads=2**20, num_key_value_heads=2**20)
        assert "entries of all heads" in refusal(path)

    def test_f5_gguf_numbers_are_refused_alike(self, tmp_path: Path, llama: Path) -> None:
        from support.models.tiny_gguf import write_gguf

        path = write_gguf(tmp_path / "long.gguf", llama, metadata={"llama.context_length": 2**32 - 1})
        assert refusal(path).startswith("long.gguf: llama.context_length = 4294967295 must be an integer from 1 to")

    def test_f5_a_model_that_no_message_holds_is_not_described(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_json(path / "config.json", max_position_embeddings=2**32)
        with pytest.raises(BadModel, match="max_position_embeddings"):
            describe(RuntimeConfig(model_path=str(path)), EngineOptions())


class TestTokenizers:
    @pytest.mark.parametrize(
        "changes",
        [
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
            {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}},
            {"model": {"type": "Unigram", "vocab": [], "unk_id": None}},
            {"model": {"type": "BPE", "vocab": {"a": 4_000_000_000}, "merges": []}},
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<zz>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {},
                }
            },
        ],
        ids=["precompiled", "replace", "no-ids", "large-id", "absent-token"],
    )
    def test_f2_a_tokenizer_that_panics_or_fails_is_a_bad_model(
        self, copy: Copy, llama: Path, changes: dict[str, object]
    ) -> None:
        path = copy(llama)
        edit_json(path / "tokenizer.json", **changes)
        with pytest.raises(BadModel, match="tokenizer"):
            load_tokenizer(open_model(str(path)))

    @pytest.mark.parametrize("encode", ["encode", "encode_plain", "encode_rest"])
    @pytest.mark.parametrize("repeats", [1, 100])
    def test_f2_a_text_that_makes_the_library_panic_is_refused(
        self, copy: Copy, llama: Path, encode: str, repeats: int
    ) -> None:
        path = copy(llama)
        split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
        edit_json(path / "tokenizer.json", pre_tokenizer=split)
        bundle = load_tokenizer(open_model(str(path)))
        with pytest.raises(InvalidArgument, match="cannot be encoded by the model's tokenizer"):
            getattr(bundle, encode)(("a" * 40 + "b") * repeats)


def test_n07_a_file_without_tensors_is_named(tmp_path: Path, llama: Path) -> None:
    path = make_tiny_gguf(tmp_path / "full.gguf", llama)
    header = read_header(path)
    content = bytearray(path.read_bytes()[: header.size])
    struct.pack_into("<Q", content, 8, 0)
    alone = tmp_path / "vocabulary.gguf"
    alone.write_bytes(content)
    assert refusal(alone).startswith("vocabulary.gguf: 20 tensor(s) that llama of its metadata needs are absent")


def test_n07_empty_weights_are_named(copy: Copy, llama: Path) -> None:
    path = copy(llama)
    write_header(path, "{}")
    assert refusal(path).startswith(f"{WEIGHTS}: 21 tensor(s) that LlamaForCausalLM of config.json needs are absent")


def gguf_text(text: str) -> bytes:
    """A string as such files hold it."""
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_array(*, kind: int, count: int) -> bytes:
    """A file whose one value is an array, up to its entries."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_text("a") + struct.pack("<IIQ", 9, kind, count)
