"""What compose files and manifests start servers with is a command line that the servers take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from headrace_engine.service.program.arguments import parse_arguments
from headrace_gateway.main import parse
from support.servers.certificates import Authority

ROOT = Path(__file__).parents[3]
SECRET, TLS = "/etc/headrace/secret/secret", "/etc/headrace/tls"


def _commands() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in ("docker-compose.yml", "deploy/compose/tls.yml", "tests/compose/several.yml"):
        services: dict[str, Any] = yaml.safe_load((ROOT / file).read_text())["services"]
        found |= {f"{file}:{name}": one["command"] for name, one in services.items() if "command" in one}
    for file in ("engine.yaml", "gateway.yaml"):
        for document in yaml.safe_load_all((ROOT / "deploy/kubernetes" / file).read_text()):
            for container in document["spec"].get("template", {}).get("spec", {}).get("containers", ()):
                found[f"{file}:{container['name']}"] = container["args"]
    return {name: arguments for name, arguments in found.items() if any("--listen" in one for one in arguments)}


COMMANDS = _commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_server_takes_its_command_line(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0" * 64)
    key, certificate = Authority(tmp_path).pair("DNS:localhost")
    (tmp_path / "gateway.pem").write_bytes(certificate)
    (tmp_path / "gateway-key.pem").write_bytes(key)
    arguments = [one.replace(SECRET, str(secret)).replace(TLS, str(tmp_path)) for one in COMMANDS[name]]
    arguments = [one.replace("$(POD_NAME)", "e1") for one in arguments]
    arguments = [one.replace("${HEADRACE_MODEL:-", "").replace("gguf}", "gguf") for one in arguments]
    if "gateway" in name:
        options = parse(arguments)
        assert options.engines_dns is not None
        assert options.engine_security.secrets == secret
        assert options.keys_file is not None
    else:
        engine = parse_arguments(arguments)
        assert engine.secrets == ("0" * 64,)
        assert [model.model_name for model in engine.models] == ["smol"]


def test_every_server_is_seen() -> None:
    assert len(COMMANDS) >= 8
