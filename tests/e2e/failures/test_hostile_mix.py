"""A hostile mix beside 16 honest streams: every honest answer is right, and nothing of the attackers stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from headrace import Client
from hostile.attacks import KINDS
from hostile.files import write_hostile_files
from support.models.tiny_models import make_tiny_llama
from support.servers.books import release_all
from support.servers.processes import Server, core_of, engine_server, gateway_server, health_of

MIB = 1 << 20
LENGTH = 8192
PATH = os.pathsep.join([str(Path(__file__).parents[2]), *(path for path in sys.path if path)])


@dataclass
class Target:
    """What is attacked."""

    gateway: Server
    engine: Server
    files: list[Path]

    @property
    def processes(self) -> dict[str, psutil.Process]:
        """Whose memory is looked at."""
        pids = {"engine": self.engine.process.pid, "gateway": self.gateway.process.pid}
        return {name: psutil.Process(pid) for name, pid in pids.items()} | {"core": core_of(self.engine)}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """A gateway and an engine that runs a model of eight layers in float32."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8}
    healthy = make_tiny_llama(tmp_path / "healthy", max_position_embeddings=LENGTH, **sizes)
    hostile = write_hostile_files(tmp_path / "hostile", make_tiny_llama(tmp_path / "small"))
    with ExitStack() as stack:
        engine = stack.enter_context(engine_server("e1", "--backend", "cpu", "--model-root", str(tmp_path)))
        gateway = stack.enter_context(gateway_server({"e1": engine.address}))
        with Client(gateway.address) as client:
            client.install_model("tiny", path=str(healthy), max_batch=32, max_length=LENGTH)
            client.start_model("tiny")
        yield Target(gateway, engine, hostile)
        for path in hostile:
            path.unlink() if not path.is_dir() else None


class Honest:
    """The process of the honest streams."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def phase(self) -> dict[str, Any]:
        """What was read since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def honest_streams(target: Target) -> Iterator[Honest]:
    command = [sys.executable, "-m", "hostile.honest", target.gateway.address, "tiny"]
    environment = os.environ | {"PYTHONPATH": PATH}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Honest(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def attack(target: Target, seconds: float, seed: int, kinds: str = ",".join(KINDS)) -> dict[str, Any]:
    """Attack for so long, and see that no attacker caused a defect."""
    arguments = [target.gateway.address, target.engine.address, "tiny", str(LENGTH), str(seconds), str(seed), kinds]
    command = [sys.executable, "-m", "hostile.run", *arguments, *map(str, target.files)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": PATH}, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found["defects"], found["defects"]
    return found


def assert_nothing_stays(target: Target) -> None:
    with Client(target.gateway.address) as client:
        release_all(client)
        assert {stat.model_name for stat in client.engine_stats() if stat.state == "RUNNING"} == {"tiny"}
    assert health_of(target.gateway.address) == "SERVING"
    for server in (target.engine, target.gateway):
        wrong = [event for event in server.events if event.get("level") in ("error", "critical")]
        assert not wrong, wrong


def test_honest_answers_are_right_beside_a_hostile_mix(target: Target) -> None:
    with honest_streams(target) as honest:
        assert not honest.phase()["wrong"]
        attack(target, 15, seed=1)
        found = honest.phase()
        assert not found["wrong"], found["wrong"]
        assert found["answers"] > 0
    assert_nothing_stays(target)


SECONDS = float(os.environ.get("HOSTILE_SECONDS", "1200"))
KINDS_OF_ATTACKS = os.environ.get("HOSTILE_KINDS", ",".join(KINDS))
ROUND = 60.0
"""Seconds after which memory and gaps are looked at."""

ALONE = float(os.environ.get("HOSTILE_ALONE", "16"))
"""Seconds for which each kind of attack comes alone afterwards, for the table; 0: none does."""

GROWTH = 48 * MIB
"""Bytes that a process may add in the second half of the time."""


@pytest.mark.soak
@pytest.mark.timeout(2 * SECONDS + 600)
def test_honest_streams_go_on_steadily_beside_a_hostile_mix(target: Target) -> None:
    """Gaps are at most twice the quiet ones at their 99th percentile, and memory is flat once all kinds came."""
    with honest_streams(target) as honest:
        honest.phase()
        time.sleep(min(ROUND, SECONDS / 4))
        quiet = honest.phase()
        rounds = [one_round(target, honest, seed) for seed in range(max(1, round(SECONDS / ROUND)))]
        alone = {f"{kind} alone": one_alone(target, honest, kind) for kind in KINDS if ALONE}
    report(quiet, rounds, alone)
    assert_nothing_stays(target)
    assert not [text for _, found, _ in rounds for text in found["wrong"]]
    for name in rounds[0][2]:
        half = [resident[name] for _, _, resident in rounds[len(rounds) // 2 :]]
        assert half[-1] <= half[0] + GROWTH, f"{name} grows: {half}"
    gaps = [gap for _, found, _ in rounds for gap in found["gaps"]]
    assert np.percentile(gaps, 99) <= 2 * np.percentile(quiet["gaps"], 99)


def one_round(target: Target, honest: Honest, seed: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """What attackers saw, what honest streams saw, and what memory each process has afterwards."""
    seen = attack(target, min(ROUND, SECONDS), seed, KINDS_OF_ATTACKS)
    found = honest.phase()
    return seen, found, {name: process.memory_info().rss for name, process in target.processes.items()}


def one_alone(target: Target, honest: Honest, kind: str) -> dict[str, Any]:
    """What honest streams saw beside one kind of attack."""
    attack(target, ALONE, seed=1, kinds=kind)
    return honest.phase()


def report(
    quiet: dict[str, Any],
    rounds: list[tuple[dict[str, Any], dict[str, Any], dict[str, int]]],
    alone: dict[str, dict[str, Any]],
) -> None:
    """Print what was seen, round by round, and the rows of the table in bench/results/scheduling.md."""
    print("\nquiet", gaps_of(quiet))
    seen: Counter[str] = Counter()
    for number, (attacks, found, resident) in enumerate(rounds):
        memory = {name: f"{size / MIB:.0f} MiB" for name, size in resident.items()}
        print(number, gaps_of(found), memory, found["wrong"])
        seen.update(attacks["seen"])
    print(json.dumps(dict(sorted(seen.items())), indent=1))
    together = {name: [each for _, found, _ in rounds for each in found[name]] for name in ("gaps", "first")}
    answers = sum(found["answers"] for _, found, _ in rounds)
    for name, found in {"nothing": quiet, "all together": {**together, "answers": answers}, **alone}.items():
        print(row(name, found))


def gaps_of(found: dict[str, Any]) -> str:
    """Percentiles of the gaps and of the times to the first token."""
    if not found["gaps"]:
        return "no answers"
    p50, p99, most = np.percentile(found["gaps"], [50, 99, 100])
    first = np.percentile(found["first"], [50, 99]) if found["first"] else [0, 0]
    text = f"gaps p50 {p50:.1f} p99 {p99:.1f} most {most:.0f} ms, first token p50 {first[0]:.0f} p99 {first[1]:.0f} ms"
    return f"{found['answers']} answers, {text}"


def row(name: str, found: dict[str, Any]) -> str:
    """A row of the table: answers, gaps, and times to the first token, in milliseconds."""
    gaps = np.percentile(found["gaps"] or [np.nan], [50, 99, 100])
    first = np.percentile(found["first"] or [np.nan], [50, 99])
    figures = [f"{gaps[0]:.1f}", *(f"{each:.0f}" for each in (*gaps[1:], *first))]
    return f"| {name} | {found['answers']} | {' | '.join(figures)} |"
