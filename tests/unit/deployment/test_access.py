"""deploy/access.py makes a secret and keys that servers take, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from access import main
from headrace_gateway.access.api_keys import read_keys
from headrace_gateway.access.keyring import Keyring
from headrace_proto.server.secrets import read_secrets


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    made = {name: tmp_path / name for name in ("secret", "keys", "metrics-key")}
    for folder in made.values():
        folder.mkdir()
    return made


def run(folders: dict[str, Path]) -> int:
    return main([f"--{name}={folder}" for name, folder in folders.items()])


def contents(folders: dict[str, Path]) -> dict[Path, bytes]:
    return {file: file.read_bytes() for folder in folders.values() for file in folder.iterdir()}


def test_servers_take_what_it_makes(folders: dict[str, Path]) -> None:
    assert run(folders) == 0
    assert len(read_secrets(folders["secret"] / "secret")) == 1
    keyring = Keyring(folders["keys"] / "keys.toml")
    ours = keyring.find((folders["keys"] / "key").read_text().strip())
    assert ours is not None
    assert ours.admin
    assert ours.allows("smol")
    prometheus = keyring.find((folders["metrics-key"] / "key").read_text().strip())
    assert prometheus is not None
    assert not prometheus.admin
    assert prometheus.metrics
    assert not prometheus.allows("smol")


def test_only_their_owner_reads_secret_and_key(folders: dict[str, Path]) -> None:
    run(folders)
    modes = {file.name: file.stat().st_mode & 0o777 for file in contents(folders) if file.parent.name != "metrics-key"}
    assert modes == {"secret": 0o400, "key": 0o400, "keys.toml": 0o400}


def test_a_second_run_changes_nothing(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run(folders)
    before = contents(folders)
    assert run(folders) == 0
    assert contents(folders) == before
    assert capsys.readouterr().out == ""


def test_keys_of_one_s_own_stay(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The key for Prometheus is made, and the lines that allow it are printed: they have no key, but its SHA-256."""
    own = folders["keys"] / "keys.toml"
    own.write_text(f'[keys.web]\nsha256 = "{"0" * 64}"\n')
    before = own.read_bytes()
    assert run(folders) == 0
    assert own.read_bytes() == before
    assert not (folders["keys"] / "key").exists()
    printed = capsys.readouterr().out
    key = (folders["metrics-key"] / "key").read_text().strip()
    assert key not in printed
    own.write_text(own.read_text() + printed.partition("\n")[2])
    assert [one.name for one in read_keys(own)] == ["web", "prometheus"]
    assert Keyring(own).find(key) is not None


def test_a_folder_that_is_not_there_is_named(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folders["keys"].rmdir()
    assert run(folders) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(folders["keys"]) in line
