"""Read the chat templates of a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace_engine.errors import BadModel
from headrace_engine.models.loaders.json_files import read_object
from headrace_engine.models.loaders.opening import has_file, read_model_file

_TEMPLATE_FILE = "chat_template.jinja"
_TOOL_FILE = Path("additional_chat_templates", "tool_use.jinja")
_OLD_TEMPLATE_FILE = "chat_template.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_LONGEST_TEMPLATE = 2**20
"""Maximum size of a template, in bytes: the same as for one in a config."""


def read_chat_templates(directory: Path) -> tuple[str | None, str | None]:
    """Return the directory's chat template, and its separate template for chats with tools; None where there is none.

    They are in chat_template.jinja and additional_chat_templates, else in chat_template.json, else in
    tokenizer_config.json.

    Raises:
        BadModel: a file cannot be read or does not contain a template.
    """
    if has_file(directory / _TEMPLATE_FILE):
        return _text(directory / _TEMPLATE_FILE), _text(directory / _TOOL_FILE)
    for name in (_OLD_TEMPLATE_FILE, _TOKENIZER_CONFIG):
        if has_file(directory / name):
            template = read_object(directory / name).get("chat_template")
            if template is not None:
                return _templates(template, name)
    return None, None


def _text(file: Path) -> str | None:
    if not has_file(file):
        return None
    try:
        return read_model_file(file, _LONGEST_TEMPLATE).decode()
    except UnicodeDecodeError as error:
        raise BadModel(f"{file.name}: is not UTF-8: {error.reason} at byte {error.start}") from error


def _templates(value: Any, source: str) -> tuple[str, str | None]:
    """Return a single template, or those named "default" and "tool_use" in a list of named templates."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        default, with_tools = named.get("default"), named.get("tool_use")
        if isinstance(default, str) and isinstance(with_tools, str | None):
            return default, with_tools
    raise BadModel(f'{source}: chat_template must be a string, or a list of templates with one named "default"')
