"""Tensors without a numeric library, and with one."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from headrace._streaming.reader import SequenceReader
from headrace._types.tensor import Tensor
from headrace_proto.v1 import generation_pb2, request_pb2
from support.scripted.wire_samples import ended, tokens


@pytest.mark.parametrize(
    ("dtype", "code"), [("FLOAT32", "f"), ("FLOAT16", "e"), ("UINT8", "B"), ("INT32", "i"), ("INT64", "q")]
)
def test_numbers_are_read_and_numpy_agrees(dtype: str, code: str) -> None:
    tensor = Tensor(dtype, (2, 3), struct.pack(f"<6{code}", *range(6)))
    assert tensor.tolist() == list(range(6))
    array = np.asarray(tensor)
    assert array.shape == (2, 3)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [row.tolist() for row in tensor.rows()] == [[0, 1, 2], [3, 4, 5]]


def test_bfloat16_is_the_upper_half_of_a_float() -> None:
    data = b"".join(struct.pack("<f", value)[2:] for value in (1.0, -2.5, 0.15625))
    tensor = Tensor("BFLOAT16", (3,), data)
    assert tensor.tolist() == [1.0, -2.5, 0.15625]
    assert not hasattr(tensor, "__array_interface__")


def test_extents_without_numbers() -> None:
    assert Tensor("FLOAT32", (0, 4), b"").rows() == []
    assert Tensor("FLOAT32", (), struct.pack("<f", 2.0)).tolist() == [2.0]
    with pytest.raises(ValueError, match="no rows"):
        Tensor("FLOAT32", (), struct.pack("<f", 2.0)).rows()


def test_bytes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 2\) has 16 bytes, not 15"):
        Tensor("FLOAT32", (2, 2), bytes(15))
    with pytest.raises(ValueError, match="unknown tensor type FLOAT4"):
        Tensor("FLOAT4", (1,), b"0")


def test_tensors_come_by_token() -> None:
    ids = [7, 8]
    wire = generation_pb2.Tensor(
        dtype=generation_pb2.TENSOR_DTYPE_FLOAT32, shape=[2, 2], data=struct.pack("<4f", 1, 2, 3, 4)
    )
    named = [request_pb2.NamedTensor(name=name, tensor=wire) for name in ("inputs_embedding", "hidden_states")]
    reader = SequenceReader()
    reader.feed(tokens(ids, tensors=named))
    reader.feed(ended(ids))
    with reader.reading():
        elements = reader.take()
    found = elements.tensors_from_model_inference
    assert [one["hidden_states"].tolist() for one in found] == [[1, 2], [3, 4]]
    assert set(found[0]) == {"inputs_embedding", "hidden_states"}
