"""The fields that callers set, with their ranges: one table for the runtime config, one for the generation config."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_engine.config import (
    ActivationQuant,
    ComputeUnit,
    InterruptPolicy,
    KvCacheMode,
    ModelFormat,
    WeightQuant,
)
from headrace_engine.errors import FieldViolation, InvalidArgument

UINT32 = 2**32 - 1
UINT64 = 2**64 - 1
MAX_ENTRIES = 4096
"""Entries of a list in a config."""

MAX_SALT = 1024
"""Bytes of a cache_salt: it is kept with the request and with its cached prefixes."""

NOT_YET = "is not supported by this engine yet"
"""How every refusal of what is not built yet reads."""


@dataclass(frozen=True, slots=True)
class Field:
    """What a field may be.

    Attributes:
        low, high: smallest and largest value; None where there is no such limit.
        above_low: low itself is not allowed.
        default: the value of an unset field; None where it depends on more than the field.
        honoured: the values that this build honours; None: all in range.
        longest: most bytes of a text.
        most: most entries of a list.
    """

    name: str
    low: float | None = None
    high: float | None = None
    above_low: bool = False
    default: Any = None
    honoured: tuple[Any, ...] | None = None
    longest: int | None = None
    most: int | None = None

    def violation(self, value: Any) -> str | None:
        """What is wrong with a value, in words; None: it is in range."""
        if isinstance(value, str):
            return _too_many(len(value.encode(errors="surrogatepass")), self.longest, "bytes")
        if isinstance(value, tuple):
            return self.too_many(len(value))
        if isinstance(value, float) and not math.isfinite(value):
            return f"= {value} is not finite; allowed: {self.range_text}"
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        too_low = self.low is not None and (value <= self.low if self.above_low else value < self.low)
        if too_low or (self.high is not None and value > self.high):
            return f"= {value} is out of range; allowed: {self.range_text}"
        return None

    def too_many(self, entries: int) -> str | None:
        """What is wrong with a list of so many entries, in words; None: nothing."""
        return _too_many(entries, self.most, "entries")

    @property
    def range_text(self) -> str:
        """The range in words, such as "above 0, at most 2"."""
        words = []
        if self.low is not None:
            words.append(f"{'above' if self.above_low else 'at least'} {_number(self.low)}")
        if self.high is not None:
            words.append(f"at most {_number(self.high)}")
        return ", ".join(words) or "any finite number"


def table(*fields: Field) -> Mapping[str, Field]:
    """Fields by name."""
    return {field.name: field for field in fields}


GENERATION = table(
    Field("do_sample", default=True),
    Field("temperature", 0, default=1.0),
    Field("top_k", 0, UINT32, default=0),
    Field("top_p", 0, 1, above_low=True, default=1.0),
    Field("min_p", 0, 1, default=0.0),
    Field("seed", 0, UINT64),
    Field("max_length", 1),
    Field("max_new_tokens", 1, UINT32),
    Field("n", 1, 64, default=1, honoured=(1,)),
    Field("stop_words", honoured=(), most=MAX_ENTRIES),
    Field("logprobs", default=False),
    Field("top_logprobs", 0, 20, default=0, honoured=(0,)),
    Field("min_length", 0, UINT32, default=0),
    Field("min_new_tokens", 0, UINT32, default=0),
    Field("early_stopping", default=True),
    Field("ignore_eos", default=False),
    Field("eos_token_id", most=MAX_ENTRIES),
    Field("stop_words_ids", honoured=(), most=MAX_ENTRIES),
    Field("stop_token_ids", honoured=(), most=MAX_ENTRIES),
    Field("include_stop", default=False, honoured=(False,)),
    Field("bad_words_ids", honoured=(), most=MAX_ENTRIES),
    Field("bad_words", honoured=(), most=MAX_ENTRIES),
    Field("no_repeat_ngram_size", 0, UINT32, default=0, honoured=(0,)),
    Field("repetition_penalty", 0, 2, above_low=True, default=1.0, honoured=(1.0,)),
    Field("presence_penalty", -2, 2, default=0.0, honoured=(0.0,)),
    Field("frequency_penalty", -2, 2, default=0.0, honoured=(0.0,)),
    Field("suppress_repetition_in_generation", default=False, honoured=(False,)),
    Field("best_of", 1, 64, honoured=(1,)),
    Field("num_beams", 1, UINT32, default=1, honoured=(1,)),
    Field("length_penalty", default=1.0, honoured=(1.0,)),
    Field("logit_bias", honoured=()),
    Field("allowed_token_ids", honoured=()),
    Field("prompt_logprobs", 0, 20, honoured=()),
    Field("response_format", honoured=()),
    Field("lora_name", default="", honoured=("",)),
    Field("mm_info", honoured=(), most=MAX_ENTRIES),
    Field("enable_tensors_from_model_inference", default=False, honoured=(False,)),
    Field("skip_special_tokens", default=True),
    Field("use_prefix_cache", default=True),
    Field("cache_salt", default="", longest=MAX_SALT),
    Field("priority", -(2**31), 2**31 - 1, default=0),
    Field("deadline", 0, above_low=True, honoured=()),
    Field("interrupt_policy", default=InterruptPolicy.RESUME),
    Field("lease"),
)

RUNTIME = table(
    Field("model_name"),
    Field("model_path"),
    Field("file_prefix"),
    Field("revision"),
    Field("hub"),
    Field("format", default=ModelFormat.AUTO, honoured=(ModelFormat.AUTO, ModelFormat.HF, ModelFormat.GGUF)),
    Field("dtype"),
    Field("compute_unit", honoured=(ComputeUnit.CUDA, ComputeUnit.CPU)),
    Field("device_list", most=MAX_ENTRIES),
    Field("num_threads", 0, 4096, default=0),
    Field("max_batch", 1, 4096, default=32),
    Field("max_length", 2, UINT32),
    Field("max_prefill_tokens", 1, 2**20, default=2048),
    Field("block_size", 8, 128, default=16),
    Field("num_blocks", 0, 2**31 - 1, default=0),
    Field("num_host_blocks", 0, default=0, honoured=(0,)),
    Field("kv_cache_mode", default=KvCacheMode.DEFAULT),
    Field("enable_prefix_cache", default=True),
    Field("prefix_cache_ttl", 0, above_low=True, honoured=()),
    Field("memory_ratio", 0, 1, above_low=True),
    Field("weight_quant", default=WeightQuant.NONE),
    Field("weight_quant_group_size", 0, honoured=(0, 16, 32, 64, 128)),
    Field("activation_quant", default=ActivationQuant.NONE, honoured=(ActivationQuant.NONE, ActivationQuant.INT8)),
    Field("rope_scaling"),
    Field("logn_attention", honoured=(False,)),
    Field("chat_template"),
    Field("max_waiting", 0, 2**20, default=256),
    Field("drain_limit", 0, default=30.0),
    Field("default_lease"),
    Field("max_lease", 0, 2**31 - 1, above_low=True, default=3600.0),
    Field("default_seed", 0, UINT64),
    Field("max_result_bytes", 1, UINT64, default=256 * 2**20),
    Field("adapters", honoured=(), most=MAX_ENTRIES),
    Field("lora_max_num", 0, honoured=()),
    Field("lora_max_rank", 0, honoured=()),
    Field("tensor_parallel", 1, default=1, honoured=(1,)),
)


def is_set(value: Any) -> bool:
    """A caller set this: it is neither None nor an empty list or mapping."""
    if value is None:
        return False
    return not (isinstance(value, tuple | dict) and not value)


def check(config: Any, fields: Mapping[str, Field], prefix: str) -> None:
    """Refuse values out of range, and values in range that this build does not honour, all of them by name.

    Args:
        config: a dataclass with the table's fields.
        prefix: path of the config in the request, such as "config.".

    Raises:
        InvalidArgument: INVALID_FIELD, or NOT_SUPPORTED where every violation is of that kind.
    """
    given = {name: getattr(config, name) for name in fields}
    given = {name: value for name, value in given.items() if is_set(value)}
    wrong = [(name, fields[name].violation(value)) for name, value in given.items()]
    refuse([FieldViolation(prefix + name, text) for name, text in wrong if text])
    refuse(
        [
            FieldViolation(prefix + name, _not_yet(fields[name], value))
            for name, value in given.items()
            if not honoured(fields[name], value)
        ],
        "NOT_SUPPORTED",
    )


def honoured(field: Field, value: Any) -> bool:
    """This build does what the value asks."""
    return field.honoured is None or value in field.honoured


def refuse(violations: Iterable[FieldViolation], reason: str = "INVALID_FIELD") -> None:
    """Raise InvalidArgument naming every violation, if there is one."""
    found = list(violations)
    if found:
        text = "; ".join(f"{violation.field.removeprefix('config.')} {violation.description}" for violation in found)
        raise InvalidArgument(text, reason=reason, violations=found)


def _too_many(size: int, limit: int | None, unit: str) -> str | None:
    return f"has {size} {unit}; allowed: at most {limit}" if limit is not None and size > limit else None


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _not_yet(field: Field, value: Any) -> str:
    """Such as "= 4 is not supported by this engine yet; allowed: 1"."""
    shown = f"= {value} " if isinstance(value, int | float | str) and value != "" else ""
    allowed = ", ".join(str(one) for one in field.honoured or () if one != "")
    return f"{shown}{NOT_YET}" + (f"; allowed: {allowed}" if allowed else "")
