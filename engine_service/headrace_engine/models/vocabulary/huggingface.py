"""Build tokenizers from the files of a Hugging Face directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace_engine.errors import BadModel, shown
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.loaders.json_files import read_object
from headrace_engine.models.loaders.opening import has_file, open_model_file, read_model_file
from headrace_engine.models.vocabulary.built import BuiltTokenizer
from headrace_engine.models.vocabulary.guarded import guarded, reason_of

_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_SPECIAL_TOKENS = "special_tokens_map.json"
_SLOW_FILES = ("tokenizer.model", "vocab.json")
_SOURCES = (".json", ".model", ".txt", ".jinja")
_LONGEST_TOKENIZER = 256 * 2**20
"""Maximum size of tokenizer.json, in bytes: several times that of the largest vocabularies."""

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def build_tokenizer(directory: Path) -> BuiltTokenizer:
    """Build the tokenizer of a directory from tokenizer.json, else via transformers without running the model's code.

    tokenizer.json decides which tokens are put around a text: as in transformers, flags such as add_bos_token in
    tokenizer_config.json only apply if there is no tokenizer.json.

    Raises:
        BadModel: there is no tokenizer, or it is damaged or of an unsupported kind.
    """
    config = ConfigFields(_optional(directory / _CONFIG), _CONFIG)
    path = directory / _TOKENIZER
    tokenizer = _from_json(path) if has_file(path) else _convert(directory, config)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    named = _named(directory, config)
    with guarded(lambda error: BadModel(f"{_CONFIG}: its special tokens cannot be added: {reason_of(error)}")):
        _add_named(tokenizer, named)
    return BuiltTokenizer(tokenizer, named)


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if has_file(path) else {}


def _from_json(path: Path) -> Any:
    from tokenizers import Tokenizer

    content = read_model_file(path, _LONGEST_TOKENIZER)
    with guarded(lambda error: BadModel(f"{path.name}: not a tokenizer: {reason_of(error)}")):
        return Tokenizer.from_buffer(content)


def _check_sources(directory: Path) -> None:
    """Check the files that the library opens itself: it would block on a FIFO and read files of any size."""
    for path in sorted(directory.iterdir()):
        if path.suffix in _SOURCES:
            with open_model_file(path) as file:
                size = os.fstat(file.fileno()).st_size
            if size > _LONGEST_TOKENIZER:
                raise BadModel(f"{path.name}: has {size} bytes; allowed: at most {_LONGEST_TOKENIZER}")


def _convert(directory: Path, config: ConfigFields) -> Any:
    if not any(has_file(directory / name) for name in _SLOW_FILES):
        raise BadModel(f"{directory.name}: no tokenizer: none of {_TOKENIZER}, {', '.join(_SLOW_FILES)} is there")
    if config.get("auto_map") is not None:
        raise BadModel(
            f"{_CONFIG}: the tokenizer needs code of its own (auto_map), which is never run: add {_TOKENIZER}"
        )
    _check_sources(directory)
    with guarded(lambda error: _not_converted(directory, error)):
        try:
            from transformers import AutoTokenizer

            slow = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
            return slow.backend_tokenizer
        except ImportError as error:
            raise _not_converted(directory, error) from error


def _not_converted(directory: Path, error: BaseException) -> BadModel:
    text = f"no {_TOKENIZER}, and transformers cannot convert the other files ({reason_of(error)})"
    advice = f"Add {_TOKENIZER}, or install sentencepiece where there is a tokenizer.model"
    return BadModel(f"{directory.name}: {text}. {advice}")


def _named(directory: Path, config: ConfigFields) -> dict[str, str]:
    """Return the text of the special tokens by role, including extra ones named by the model."""
    content = _optional(directory / _SPECIAL_TOKENS)
    found = {name: content.get(name) if config.get(name) is None else config.get(name) for name in _ROLES}
    extra = config.get("extra_special_tokens")
    named = {**found, **(extra if isinstance(extra, dict) else {})}
    return {name: _text(token, name) for name, token in named.items() if token is not None}


def _text(token: Any, name: str) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        raise BadModel(f"{_CONFIG}: {name} = {shown(token)} must be a string, or an object with one as content")
    return content


def _add_named(tokenizer: Any, named: Mapping[str, str]) -> None:
    """Add tokens with a role as special tokens, even if tokenizer.json does not list them as such."""
    from tokenizers import AddedToken

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    absent = [text for text in named.values() if text not in known and tokenizer.token_to_id(text) is not None]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in dict.fromkeys(absent)])
