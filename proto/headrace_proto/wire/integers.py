"""Ranges of the integer types of protobuf."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
"""Smallest and largest value by the type of a field, as descriptors have it (`cpp_type`)."""
