"""What docs/security.md says to type, typed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from headrace_gateway.access.api_keys import read_keys
from support.servers.processes import engine_server

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()


def block(beginning: str) -> str:
    """The fenced block that begins so."""
    (found,) = re.findall(rf"```\w*\n({re.escape(beginning)}.*?)```", PAGE, re.DOTALL)
    return str(found)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_bc184_the_certificates_of_the_page_are_accepted(tmp_path: Path, host: str) -> None:
    subprocess.run(block("openssl req -x509"), shell=True, cwd=tmp_path, check=True, capture_output=True)
    with engine_server(
        "e1", "--tls-cert", f"{tmp_path}/gateway.pem", "--tls-key", f"{tmp_path}/gateway-key.pem"
    ) as engine:
        address = f"{host}:{engine.address.rpartition(':')[2]}"
        command = [sys.executable, "-m", "headrace.cli", "models", "--address", address]
        done = subprocess.run([*command, "--ca", f"{tmp_path}/ca.pem"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert refused.returncode == 1
        assert "speaks TLS" in refused.stderr
        assert "--ca FILE connects over TLS" in refused.stderr


def test_the_keys_of_the_page_are_a_key_file(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(block("[keys.web]"))
    (key,) = read_keys(tmp_path / "keys.toml")
    assert (key.owner, key.models, key.requests_per_minute) == ("team", ("qwen*", "smol"), 600)
