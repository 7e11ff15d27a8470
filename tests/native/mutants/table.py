"""All planted faults."""

from native.mutants import attention, kv, many_rows, quantized, rows, sampling

MUTANTS = tuple(fault for part in (attention, kv, many_rows, quantized, rows, sampling) for fault in part.MUTANTS)
