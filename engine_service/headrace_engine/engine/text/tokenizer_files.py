"""A model's tokenizer as the files that Hugging Face's libraries read, whatever files the model came as."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

from headrace_engine.models.tokenizer import TokenizerBundle

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer.

    Attributes:
        files: texts of the files, by name.
        eos_ids: ids that end a request.
        bos_id: id that begins a sequence; None: none does.
    """

    files: Mapping[str, str]
    eos_ids: tuple[int, ...]
    bos_id: int | None


def tokenizer_files(bundle: TokenizerBundle, chat_template: str | None, architecture: str) -> TokenizerFiles:
    """Write a tokenizer. Blocking: a large vocabulary takes some tenths of a second.

    Args:
        chat_template: instead of the model's own; None: the model's.
        architecture: the model's, for config.json.
    """
    settings = {
        **bundle.template_variables,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bundle.adds_bos,
        "clean_up_tokenization_spaces": False,
    }
    template = _template(bundle, chat_template)
    if template is not None:
        settings["chat_template"] = template
    config = {
        "model_type": model_type(architecture),
        "architectures": [architecture],
        "eos_token_id": list(bundle.eos_ids),
    }
    files = {
        "tokenizer.json": bundle.tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(settings),
        "config.json": json.dumps(config),
    }
    return TokenizerFiles(files, bundle.eos_ids, bundle.bos_id)


def tokenizer_archive(bundle: TokenizerBundle, chat_template: str | None, architecture: str) -> bytes:
    """Return the files of a tokenizer as a zip; arguments as of `tokenizer_files`. Blocking.

    Equal files give equal bytes, by which others know a tokenizer again.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in tokenizer_files(bundle, chat_template, architecture).files.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def model_type(architecture: str) -> str:
    """Return the name that configs give to the models of an architecture, such as "gpt_oss" of GptOssForCausalLM."""
    return _WORDS.sub("_", architecture.removesuffix("ForCausalLM")).lower()


def _template(bundle: TokenizerBundle, chat_template: str | None) -> str | list[dict[str, str]] | None:
    if chat_template is not None:
        return chat_template or None
    if bundle.tool_template is None or bundle.chat_template is None:
        return bundle.chat_template
    return [
        {"name": "default", "template": bundle.chat_template},
        {"name": "tool_use", "template": bundle.tool_template},
    ]
