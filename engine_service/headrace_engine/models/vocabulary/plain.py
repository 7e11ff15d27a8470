"""A tokenizer for the continuation of a text, with names of special tokens as plain text."""

from __future__ import annotations

import json
from typing import Any


def plain_tokenizer(tokenizer: Any) -> Any:
    """Return a tokenizers.Tokenizer over the same model that prepends nothing to a text and has no special tokens.

    Both share the model, which takes nearly all of the memory.
    """
    from tokenizers import Tokenizer

    plain = Tokenizer(tokenizer.model)
    steps = Tokenizer.from_str(json.dumps(_without_model(tokenizer)))
    if steps.normalizer is not None:
        plain.normalizer = steps.normalizer
    if steps.pre_tokenizer is not None:
        plain.pre_tokenizer = steps.pre_tokenizer
    added = [token for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    plain.add_tokens(added)
    plain.encode_special_tokens = True
    return plain


def _without_model(tokenizer: Any) -> dict[str, Any]:
    """Return the steps before the model, in the format of a tokenizer.json."""
    parts = {"normalizer": tokenizer.normalizer, "pre_tokenizer": tokenizer.pre_tokenizer}
    states = {name: _going_on(json.loads(part.__getstate__())) for name, part in parts.items() if part is not None}
    model = {"type": "BPE", "vocab": {}, "merges": []}
    return {"version": "1.0", "added_tokens": [], "post_processor": None, "decoder": None, "model": model, **states}


def _going_on(step: Any) -> Any:
    """Return a normalizer or pre-tokenizer that prepends nothing to a text."""
    kind = step["type"]
    if kind == "Sequence":
        key = "normalizers" if "normalizers" in step else "pretokenizers"
        return {**step, key: [_going_on(part) for part in step[key] if part["type"] != "Prepend"]}
    if kind == "Prepend":
        return {"type": "Sequence", "normalizers": []}
    if kind == "Metaspace":
        return {**step, "prepend_scheme": "never"}
    return {**step, "add_prefix_space": False} if "add_prefix_space" in step else step
