"""What an engine and its gateway tell Prometheus of requests that a real model answered."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml
from headrace import Client
from headrace.errors import AuthError
from headrace_gateway.access.api_keys import new_key
from prometheus_client.parser import text_string_to_metric_families
from support.clocks.waiting import LIMIT
from support.deployment.prometheus import MISSING, OBSERVABILITY, program
from support.models.tiny_models import make_tiny_llama
from support.servers.http_servers import HttpGateway, http_gateway
from support.servers.processes import Server, engine_server

LENGTH = 12
CONFIG: dict[str, Any] = {"max_new_tokens": LENGTH, "ignore_eos": True, "do_sample": False}
MODEL = {"engine": "e1", "model": "tiny"}

Values = Callable[..., float]


@pytest.fixture(scope="module")
def engine() -> Iterator[Server]:
    with engine_server("e1", "--metrics", "127.0.0.1:0") as engine:
        yield engine


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A key file; the key of an administrator, and one for another model."""
    (admin, first), (guest, second) = new_key("ops"), new_key("guest")
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(f'{first}admin = true\nowner = "team"\n{second}models = ["other"]\n')
    return file, admin, guest


@pytest.fixture(scope="module")
def gateway(engine: Server, keys: tuple[Path, str, str]) -> Iterator[HttpGateway]:
    with http_gateway({"e1": engine.address}, "--keys", str(keys[0])) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def answered(
    gateway: HttpGateway, keys: tuple[Path, str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, HttpGateway]:
    """Have two requests answered, of two sequences and of one; return the number of tokens of their prompts."""
    _, admin, guest = keys
    folder = make_tiny_llama(tmp_path_factory.mktemp("metrics") / "tiny")
    with Client(gateway.address, api_key=admin) as client:
        client.install_model("tiny", path=str(folder), max_batch=4, num_threads=1)
        client.start_model("tiny")
        for count in (2, 1):
            handle, _ = client.start_request("tiny", "Once upon a time", n=count, **CONFIG)
            for index in range(count):
                queue = client.open_queue(handle, index=index)
                assert len([token for elements in queue for token in elements.ids_from_generate]) == LENGTH
            client.release_request(handle)
        prompt = len(client.tokenize("tiny", "Once upon a time").ids)
    with Client(gateway.address, api_key=guest) as client, pytest.raises(AuthError):
        client.start_request("tiny", "x")
    with Client(gateway.address) as client, pytest.raises(AuthError):
        client.list_models()
    return prompt, gateway


def samples(url: str, **headers: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the values by name and labels."""
    with urlopen(Request(url, headers=headers), timeout=LIMIT) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def scrape(url: str, **headers: str) -> Values:
    """Return what looks up a value by its name and labels, which are by default those of the model."""
    found = samples(url, **headers)

    def value(name: str, labels: dict[str, str] = MODEL, **more: str) -> float:
        return found[name, frozenset({**labels, **more}.items())]

    return value


def test_an_engine_counts_what_it_answered(engine: Server, answered: tuple[int, HttpGateway]) -> None:
    prompt, _ = answered
    value = scrape(f"http://{engine.wait_event('listening')['metrics']}/metrics")
    assert value("headrace_sequences_finished_total", reason="MAX_LENGTH") == 3
    for name in ("queue", "first_token", "request"):
        assert value(f"headrace_{name}_seconds_count") == 3
        assert value(f"headrace_{name}_seconds_bucket", le="+Inf") == 3
        assert value(f"headrace_{name}_seconds_sum") > 0
    assert value("headrace_inter_token_seconds_count") == 3 * (LENGTH - 1)
    assert value("headrace_generated_length_tokens_sum") == value("headrace_generated_tokens_total") == 3 * LENGTH
    assert value("headrace_owner_sequences_total", owner="team") == 3
    assert value("headrace_owner_generated_tokens_total", owner="team") == 3 * LENGTH
    assert value("headrace_owner_prompt_tokens_total", owner="team") == 2 * prompt
    assert value("headrace_prompt_length_tokens_count") == 2
    assert value("headrace_step_sequences_sum") >= 3 * LENGTH
    looked_up = value("vllm:prefix_cache_queries_total", {"engine": "e1", "model_name": "tiny"})
    hits, misses = value("headrace_prefix_cache_hit_tokens_total"), value("headrace_prefix_cache_miss_tokens_total")
    assert looked_up == hits + misses >= 2 * prompt


def test_a_gateway_counts_calls_by_method_and_key(
    answered: tuple[int, HttpGateway], keys: tuple[Path, str, str]
) -> None:
    gateway = answered[1]
    url, authorization = f"http://{gateway.http}/metrics", f"Bearer {keys[1]}"
    before = scrape(url, authorization=authorization)("headrace_gateway_key_calls_total", {"key": "ops"})
    value = scrape(url, authorization=authorization)
    call = {"api": "grpc", "method": "StartRequest"}
    assert value("headrace_gateway_calls_total", call, code="OK") == 2
    assert value("headrace_gateway_calls_total", call, code="PERMISSION_DENIED") == 1
    assert value("headrace_gateway_call_seconds_count", call) == 3
    assert value("headrace_gateway_failures_total", {"key": "guest", "reason": "NOT_ALLOWED"}) == 1
    assert value("headrace_gateway_failures_total", {"key": "", "reason": "BAD_API_KEY"}) >= 1
    assert value("headrace_gateway_key_calls_total", {"key": "ops"}) == before + 1
    assert value("headrace_gateway_calls_total", {"api": "http", "method": "GET /metrics"}, code="200") >= 1
    assert value("headrace_gateway_calls_in_progress", {}) == 1
    assert value("headrace_generated_tokens_total") == 3 * LENGTH


def test_what_strangers_ask_for_makes_no_metric(answered: tuple[int, HttpGateway], keys: tuple[Path, str, str]) -> None:
    gateway = answered[1]
    for path in ("/a", "/b"):
        assert gateway.ask("PATCH", path)[0] == 401
    value = scrape(f"http://{gateway.http}/metrics", authorization=f"Bearer {keys[1]}")
    assert value("headrace_gateway_calls_total", {"api": "http", "method": "another path"}, code="401") >= 2


def _expressions() -> dict[str, list[str]]:
    """The expressions of alert rules and of panels, by file."""
    rules = yaml.safe_load((OBSERVABILITY / "alerts.yml").read_text())["groups"]
    panels = json.loads((OBSERVABILITY / "grafana/dashboards/headrace.json").read_text())["panels"]
    return {
        "alerts": [rule["expr"] for group in rules for rule in group["rules"]],
        "dashboard": [target["expr"] for panel in panels for target in panel.get("targets", ())],
    }


@pytest.mark.parametrize("file", ["alerts", "dashboard"])
def test_rules_and_panels_name_what_servers_tell(
    file: str, engine: Server, answered: tuple[int, HttpGateway], keys: tuple[Path, str, str]
) -> None:
    """Metrics by name, with each label that an expression asks for."""
    told: dict[str, set[str]] = {"up": {"job", "instance"}}
    of_gateway = samples(f"http://{answered[1].http}/metrics", authorization=f"Bearer {keys[1]}")
    _, job = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())["scrape_configs"]
    kept = [key for key in of_gateway if re.fullmatch(job["metric_relabel_configs"][0]["regex"], key[0])]
    for name, labels in [*samples(f"http://{engine.wait_event('listening')['metrics']}/metrics"), *kept]:
        told.setdefault(name, {"instance"}).update(label for label, _ in labels)
    expressions = _expressions()[file]
    assert len(expressions) >= 8
    for expression in expressions:
        named = re.findall(r"\b(up|headrace_\w+)(?:\{([^}]*)\})?", expression)
        assert named, expression
        for name, matchers in named:
            assert name in told, expression
            assert set(re.findall(r"(\w+)=", matchers)) <= told[name], expression
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            assert any(set(grouped.split(", ")) <= told[name] for name, _ in named), expression


@pytest.mark.skipif(program("promtool") is None, reason=MISSING)
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "config", "--syntax-only", "prometheus.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ],
)
def test_prometheus_takes_its_files(arguments: list[str]) -> None:
    done = subprocess.run(
        [str(program("promtool")), *arguments], cwd=OBSERVABILITY, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout + done.stderr
