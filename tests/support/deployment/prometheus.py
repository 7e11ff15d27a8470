"""Prometheus itself, beside servers of a test, with the files that compose gives it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from support.clocks.waiting import LIMIT, wait_until
from support.servers.ports import free_port

ROOT = Path(__file__).parents[3]
OBSERVABILITY = ROOT / "deploy" / "observability"
UNPACKED = ROOT / "build" / "prometheus" / "usr" / "bin"
"""Where deploy/prometheus.sh puts it."""

MISSING = "Prometheus is not here (Debian's package, or deploy/prometheus.sh)"


def program(name: str) -> str | None:
    """Return the path of prometheus or promtool; None: it is not here."""
    return shutil.which(name) or shutil.which(name, path=str(UNPACKED))


@dataclass
class Prometheus:
    """A running Prometheus.

    Attributes:
        url: of its API.
    """

    url: str

    def ask(self, path: str, **query: str) -> Any:
        """Return what its API answers."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=LIMIT) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def value(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and values of what an expression selects now."""
        return [(one["metric"], float(one["value"][1])) for one in self.ask("query", query=expression)["result"]]

    def rules(self) -> dict[str, Any]:
        """Return the rules by name."""
        return {rule["name"]: rule for group in self.ask("rules")["groups"] for rule in group["rules"]}


def configured(folder: Path, engine: str, gateway: str, key: Path) -> Path:
    """Write compose's configuration with other addresses and shorter intervals. Return its file."""
    found = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())
    found["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    found["rule_files"] = [str(OBSERVABILITY / file) for file in found["rule_files"]]
    engines, gateways = found["scrape_configs"]
    del engines["dns_sd_configs"]
    engines["static_configs"] = [{"targets": [engine]}]
    gateways["static_configs"] = [{"targets": [gateway]}]
    gateways["authorization"]["credentials_file"] = str(key)
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(found))
    return file


@contextlib.contextmanager
def prometheus(config: Path) -> Iterator[Prometheus]:
    """Run Prometheus."""
    port, log = free_port(), config.with_name("prometheus.log")
    options = [f"--config.file={config}", f"--storage.tsdb.path={config.with_name('data')}"]
    command = [str(program("prometheus")), *options, f"--web.listen-address=127.0.0.1:{port}"]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        found = Prometheus(f"http://127.0.0.1:{port}")
        try:
            wait_until(lambda: _answers(found, process, log), "Prometheus does not answer")
            yield found
        finally:
            process.terminate()
            process.wait(LIMIT)


def _answers(found: Prometheus, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        with urlopen(f"{found.url}/-/ready", timeout=LIMIT):
            return True
    except (URLError, ConnectionError):
        return False
