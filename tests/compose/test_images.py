"""What the images carry, and what they must not."""

from __future__ import annotations

import subprocess

import pytest
from support.deployment.containers import LIMIT, in_image, run

ENGINE, GATEWAY = "headrace-engine:cpu", "headrace-gateway:latest"
LIST_DISTRIBUTIONS = "from importlib.metadata import distributions\nfor d in distributions(): print(d.name, d.version)"

pytestmark = pytest.mark.compose


def _distributions(image: str) -> dict[str, str]:
    lines = in_image(image, "python", "-c", LIST_DISTRIBUTIONS).splitlines()
    return {name.lower(): version for name, version in map(str.split, lines)}


def test_the_cpu_image_has_no_part_of_cuda() -> None:
    found = _distributions(ENGINE)
    assert found["torch"].endswith("+cpu")
    assert [name for name in found if name.startswith(("nvidia", "cuda", "cupy", "triton"))] == []


def test_bc200_threads_follow_the_containers_cpu_share() -> None:
    question = (
        "from headrace_engine.backends.host import compute_threads, cpu_quota; print(compute_threads(), cpu_quota())"
    )
    assert in_image(ENGINE, "python", "-c", question, options=["--cpus", "1"]).split() == ["1", "1.0"]
    assert in_image(ENGINE, "python", "-c", question).split()[1] == "None"


def test_the_gateway_image_has_no_engine() -> None:
    found = _distributions(GATEWAY)
    assert "headrace-gateway" in found
    assert {"torch", "numpy", "transformers", "headrace-engine"} & set(found) == set()


@pytest.mark.parametrize("image", [ENGINE, GATEWAY])
def test_images_can_send_spans(image: str) -> None:
    script = "from headrace_proto.server.traces import start_tracing; print(start_tracing('x').__name__)"
    options = ["--env", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"]
    assert in_image(image, "python", "-c", script, options=options).split() == ["flush"]


@pytest.mark.parametrize("image", [ENGINE, GATEWAY])
def test_images_run_as_nobody_special_and_carry_no_compiler(image: str) -> None:
    assert in_image(image, "id", "-u").strip() == "10001"
    tools = "for tool in cc gcc g++ make pip; do command -v $tool; done; true"
    assert in_image(image, "sh", "-c", tools) == ""


@pytest.mark.parametrize("image", [ENGINE, GATEWAY])
def test_images_hold_no_settings_of_the_machine_that_built_them(image: str) -> None:
    settings = run(["docker", "image", "inspect", "--format", "{{.Config.Env}}", image])
    assert "PIP" not in settings
    assert "INDEX" not in settings
    assert in_image(image, "sh", "-c", "ls /usr/local/share/ca-certificates") == ""


def test_bc203_an_engine_without_its_model_ends_with_one_line() -> None:
    """With a restart policy the container comes back, and the log shows the reason again."""
    command = ["docker", "run", "--rm", "--network", "none", ENGINE, "--model", "smol=/models/none.gguf", "--no-hub"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode != 0
    (line,) = (done.stdout + done.stderr).splitlines()
    assert "/models/none.gguf: no such file or directory" in line


def test_the_probe_tells_a_server_that_is_not_there() -> None:
    script = "python /opt/headrace/probe.py 127.0.0.1:1; echo $?"
    assert in_image(GATEWAY, "sh", "-c", script).splitlines() == [
        '127.0.0.1:1 "headrace.v1.ModelService": UNAVAILABLE',
        "1",
    ]
