"""Write all files generated from fields of the wire contract: `python -m fieldgen`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping

from fieldgen import client, engine, page, reference, stats
from fieldgen.contract import PROTO, TOOLS, Contract

ROOT = PROTO.parent
FILES: Mapping[str, Callable[[Contract], str]] = {
    "engine_service/headrace_engine/config.py": engine.runtime_config,
    "engine_service/headrace_engine/generation_config.py": engine.generation_config,
    "engine_service/headrace_engine/engine/config/fields.py": engine.table,
    "client/headrace/_values/field_values.py": client.values,
    "client/headrace/_values/generation_fields.py": client.generation_keywords,
    "client/headrace/_values/install_fields.py": client.install_keywords,
    "client/headrace/_values/generation_setters.py": client.setters,
    "client/headrace/_types/engine_stat.py": stats.engine_stat,
    "proto/headrace_proto/pure/stat_metrics.py": stats.metrics,
    "docs/fields.md": page.page,
    "docs/api/grpc.md": reference.page,
}


def made() -> dict[str, str]:
    """Return the text of every generated file, by its path in the repository."""
    contract = Contract()
    texts = {path: make(contract) for path, make in FILES.items()}
    return {path: _formatted(path, text) if path.endswith(".py") else text for path, text in texts.items()}


def _formatted(path: str, code: str) -> str:
    command = [str(TOOLS / "ruff"), "format", "--stdin-filename", path, "-"]
    made = subprocess.run(command, cwd=ROOT, input=code, text=True, check=True, stdout=subprocess.PIPE)
    return made.stdout


if __name__ == "__main__":
    for path, text in made().items():
        (ROOT / path).write_text(text)
