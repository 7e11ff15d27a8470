"""Configs of real models, and what becomes of each: docs/model-configs.md, which `make model-configs` writes.

The configs are facts of published models, as a public repository holds them for its tests; `source` in the file says
where. Left out is what describes training, labels, and parts of models that see or hear.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace_engine.errors import BadModel
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families import family_of
from headrace_engine.models.loaders.huggingface import CONFIG, read_architecture
from headrace_engine.models.loaders.quantization import replace_quantized

PAGE = Path(__file__).parents[3] / "docs" / "model-configs.md"
_CORPUS: Mapping[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
CONFIGS: Mapping[str, dict[str, Any]] = _CORPUS["configs"]
SOURCE: str = _CORPUS["source"]

_HEAD = """# Configs of real models

What an install says to the `config.json` of {count} published models ([their source]({source})): {loaded} are computed,
{refused} are refused. `make model-configs` writes this page, and a test compares it.

| config | architecture | outcome |
|---|---|---|
"""


def outcome(config: Mapping[str, Any]) -> str:
    """Return how a config is refused, without the list of what is supported; "" if its model is computed."""
    fields = ConfigFields(config, CONFIG)
    try:
        architecture, _ = read_architecture(fields)
        family_of(architecture, CONFIG).from_config[architecture](fields)
        replace_quantized(fields, {})
    except BadModel as error:
        return error.message.partition("; supported are ")[0]
    return ""


def page() -> str:
    """Return the page with the outcome of each config."""
    outcomes = {name: outcome(config) for name, config in CONFIGS.items()}
    refused = sum(map(bool, outcomes.values()))
    head = _HEAD.format(count=len(outcomes), source=SOURCE, loaded=len(outcomes) - refused, refused=refused)
    return head + "".join(_row(name, text) for name, text in outcomes.items())


def _row(name: str, text: str) -> str:
    architecture = ", ".join(CONFIGS[name].get("architectures") or ["–"])
    return f"| {name} | `{architecture}` | {text or _computed(architecture)} |\n"


def _computed(architecture: str) -> str:
    return "computed, for text alone" if family_of(architecture, CONFIG).note else "computed"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
