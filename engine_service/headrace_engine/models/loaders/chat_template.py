"""The chat template that a Hugging Face directory carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace_engine.errors import BadModel
from headrace_engine.models.loaders.json_files import read_object

_TEMPLATE_FILE = "chat_template.jinja"
_OLD_TEMPLATE_FILE = "chat_template.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"


def read_chat_template(directory: Path) -> str | None:
    """The template of chat_template.jinja, else of chat_template.json, else of tokenizer_config.json; None without.

    Raises:
        BadModel: a file cannot be read, or what it holds is no template.
    """
    file = directory / _TEMPLATE_FILE
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BadModel(f"{file.name}: cannot be read: {error}") from error
    for name in (_OLD_TEMPLATE_FILE, _TOKENIZER_CONFIG):
        if (directory / name).is_file():
            template = read_object(directory / name).get("chat_template")
            if template is not None:
                return _template(template, name)
    return None


def _template(value: Any, source: str) -> str:
    """A string, or the one called "default" in a list of named templates."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        if isinstance(named.get("default"), str):
            return str(named["default"])
    raise BadModel(f'{source}: chat_template must be a string, or a list of templates with one named "default"')
