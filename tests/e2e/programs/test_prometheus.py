"""Prometheus reads servers with the files and the key of compose, and evaluates rules and panels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from access import main as make_keys
from headrace import Client
from headrace.errors import NotFoundError
from support.clocks.waiting import wait_until
from support.deployment.prometheus import MISSING, OBSERVABILITY, Prometheus, configured, program, prometheus
from support.models.tiny_models import make_tiny_llama
from support.servers.http_servers import http_gateway
from support.servers.ports import free_port
from support.servers.processes import engine_server

pytestmark = pytest.mark.skipif(program("prometheus") is None, reason=MISSING)

ALERTS = {"HeadraceEngineDown", "HeadraceGatewayDown", "HeadraceQueueSlow", "HeadraceOverload"}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    folders = {name: folder / name for name in ("secret", "keys", "metrics-key")}
    for one in folders.values():
        one.mkdir()
    assert make_keys([f"--{name}={path}" for name, path in folders.items()]) == 0
    model = make_tiny_llama(folder / "tiny")
    with (
        engine_server("e1", "--metrics", "127.0.0.1:0") as engine,
        http_gateway({"e1": engine.address}, "--keys", str(folders["keys"] / "keys.toml")) as gateway,
        Client(gateway.address, api_key=(folders["keys"] / "key").read_text().strip()) as client,
    ):
        client.install_model("tiny", path=str(model), max_batch=4, num_threads=1)
        client.start_model("tiny")
        assert "".join(client.generate("tiny", "Once", max_new_tokens=8, ignore_eos=True))
        with pytest.raises(NotFoundError):
            client.get_model("none")
        metrics = engine.wait_event("listening")["metrics"]
        config = configured(folder, metrics, gateway.http, folders["metrics-key"] / "key")
        with prometheus(config) as running:
            yield running


def test_all_targets_are_read(watched: Prometheus) -> None:
    def health() -> dict[str, str]:
        found = watched.ask("targets")["activeTargets"]
        return {one["scrapePool"]: one["health"] + one["lastError"] for one in found}

    wanted = {"headrace-engines": "up", "headrace-gateways": "up"}
    wait_until(lambda: health() == wanted, "not all targets are up")


def test_the_key_of_compose_sees_keys_and_owners(watched: Prometheus) -> None:
    def told(expression: str) -> dict[str, float]:
        return {next(iter(labels.values())): value for labels, value in watched.value(expression)}

    wait_until(lambda: told("sum by (key) (headrace_gateway_key_calls_total)").get("prometheus", 0) >= 2, "no calls")
    assert told("sum by (key) (headrace_gateway_key_calls_total)")["compose"] >= 3
    failures = "sum by (reason) (headrace_gateway_failures_total{key='compose'})"
    assert told(failures) == {"UNKNOWN_MODEL": 1}
    assert set(told("sum by (owner) (headrace_owner_requests)")) == {"compose", "prometheus"}


def test_nothing_is_told_twice(watched: Prometheus) -> None:
    wait_until(lambda: bool(watched.value("headrace_engine_reachable")), "the gateway is not read")
    twice = "count by (__name__) (count by (__name__, job) ({__name__=~'headrace_.+|vllm:.+'})) > 1"
    assert watched.value(twice) == []


def test_rules_are_evaluated_and_none_fires(watched: Prometheus) -> None:
    def settled() -> bool:
        rules = watched.rules()
        return all(rule["health"] == "ok" for rule in rules.values()) and rules.keys() >= ALERTS

    wait_until(settled, "rules are not evaluated")
    wait_until(lambda: len(watched.value("up == 1")) == 2, "not all targets are up")
    assert [name for name, rule in watched.rules().items() if rule["state"] == "firing"] == []


def test_every_panel_has_values(watched: Prometheus) -> None:
    """Of rates there are some once a counter was read twice."""
    file = Path(OBSERVABILITY / "grafana/dashboards/headrace.json")
    panels = [panel for panel in json.loads(file.read_text())["panels"] if panel["type"] != "row"]
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "5m").replace("$model", ".*")
            wait_until(lambda asked=expression: bool(watched.value(asked)), f"{panel['title']}: {expression}")


def test_an_engine_that_is_gone_is_noticed(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("none")
    gone = f"127.0.0.1:{free_port()}"
    with prometheus(configured(tmp_path, gone, gone, key)) as running:
        found = {"HeadraceEngineDown", "HeadraceGatewayDown"}

        def noticed() -> set[str]:
            return {name for name, rule in running.rules().items() if rule["state"] in ("pending", "firing")}

        wait_until(lambda: noticed() == found, "no rule notices that servers are gone")
