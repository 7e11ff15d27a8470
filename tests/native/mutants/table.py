"""All planted faults."""

from native.mutants import attention, kv, quantized, rows, sampling

MUTANTS = (*attention.MUTANTS, *kv.MUTANTS, *quantized.MUTANTS, *rows.MUTANTS, *sampling.MUTANTS)
