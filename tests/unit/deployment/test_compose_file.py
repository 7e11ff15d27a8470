"""What docker-compose.yml says of every service. `make compose-test` runs those whose images are here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FILE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
ONE_SHOT = {"access"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_do_no_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    assert not {"privileged", "user", "cap_add", "devices"} & set(service)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_a_health_check_or_ends(name: str) -> None:
    service = SERVICES[name]
    assert ("healthcheck" in service) == (name not in ONE_SHOT)
    assert service["restart"] == ("no" if name in ONE_SHOT else "unless-stopped")


def test_ports_are_published_on_loopback_alone() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_each_engine_has_a_state_of_its_own() -> None:
    states = [
        volume.partition(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
        if volume.endswith(":/var/lib/headrace")
    ]
    assert len(states) == len(set(states)) == 3


def test_volumes_are_declared_and_used() -> None:
    mounts = [volume for service in SERVICES.values() for volume in service.get("volumes", ())]
    named = {re.sub(r"^\$\{\w+:-(\w.*?)\}", r"\1", volume).partition(":")[0] for volume in mounts}
    assert {name for name in named if re.match(r"\w", name)} == set(FILE["volumes"])


def test_spans_go_where_the_environment_says() -> None:
    tracing = {name for name, one in SERVICES.items() if "OTEL_EXPORTER_OTLP_ENDPOINT" in one.get("environment", ())}
    assert tracing == {"engine", "engine-2", "engine-gpu", "gateway"}


def test_the_default_profile_is_one_that_has_an_engine() -> None:
    (default,) = re.findall(r"^COMPOSE_PROFILES=(\w+)$", (ROOT / ".env").read_text(), re.MULTILINE)
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", ())}
    assert profiles == {"cpu", "two", "gpu", "observability"}
    assert [name for name, service in SERVICES.items() if default in service.get("profiles", ())] == ["engine"]
