"""Models that two processes compute: either may die or hang, and none is left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from headrace import Client, ResultQueue
from headrace.model_types import ModelInfo
from support.clocks.waiting import wait_until
from support.servers.gate import Gate
from support.servers.processes import Server, core_of, engine_server, gated_engine_server
from support.servers.reading import Reading

STREAMS = 16
LENGTH = 40
BACKENDS = ("cpu", "torch")


def install(client: Client, folder: Path, name: str, **config: Any) -> None:
    client.install_model(name, path=str(folder), max_batch=STREAMS, max_length=128, num_threads=2, **config)
    client.start_model(name)


def start_all(client: Client, model: str) -> list[ResultQueue]:
    """Start greedy and sampled answers, alternately."""
    asked: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": LENGTH}
    configs = [{"do_sample": bool(each % 2), "temperature": 1.5, "seed": each} for each in range(STREAMS)]
    return [
        client.start_request(model, ids=[1, 2, number], **asked, **config)[1] for number, config in enumerate(configs)
    ]


def ids_of(queues: list[ResultQueue]) -> list[list[int]]:
    return [list(Reading(queue).whole().ids) for queue in queues]


def other_rank(core: psutil.Process) -> psutil.Process:
    (rank,) = core.children()
    return rank


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("victim", ["rank 0", "rank 1"])
def test_either_rank_may_be_killed_under_16_streams(victim: str, backend: str, tiny: Path, tmp_path: Path) -> None:
    """All ranks are started again, and every stream goes on with the ids of one device."""
    gate = Gate(tmp_path / "steps")
    with gated_engine_server("e1", gate, "--backend", backend) as engine, Client(engine.address) as client:
        install(client, tiny, "tiny")
        expected = ids_of(start_all(client, "tiny"))
        client.stop_model("tiny")
        client.release_model("tiny")
        install(client, tiny, "tiny", tensor_parallel=2)
        gate.shut()
        queues = start_all(client, "tiny")
        gate.let(LENGTH // 4)
        core = core_of(engine)
        rank = other_rank(core)
        (core if victim == "rank 0" else rank).kill()
        gate.open()
        reason = engine.wait_event("core_lost", model="tiny")["reason"]
        assert ("rank 1 of the model" in reason) == (victim == "rank 1")
        assert ids_of(queues) == expected
        engine.wait_event("core_restarted", model="tiny")
        assert_gone([core, rank])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_idle_core_notices_the_end_of_a_rank(backend: str, tiny: Path) -> None:
    with engine_server("e1", "--backend", backend) as engine, Client(engine.address) as client:
        install(client, tiny, "tiny", tensor_parallel=2)
        other_rank(core_of(engine)).kill()
        reason = engine.wait_event("core_lost", model="tiny", epoch=1)["reason"]
        assert reason == "rank 1 of the model was killed by SIGKILL"
        engine.wait_event("core_restarted", model="tiny", epoch=2)
        assert len(ids_of(start_all(client, "tiny")[:1])[0]) == LENGTH


HANGS = {
    "loading": "rank 1 of the model made no progress for 20 s (10 times --core-ping-limit)",
    "warm-up": "rank 1 of the model made no progress for 2 s (--core-ping-limit)",
}


def the_model(client: Client) -> ModelInfo:
    (model,) = client.get_model("tiny")
    return model


def warms_up(client: Client) -> bool:
    progress = the_model(client).progress
    return progress is not None and progress.phase == "WARMING_UP"


def has_ranks(engine: Server) -> bool:
    children = psutil.Process(engine.process.pid).children(recursive=True)
    return any("headrace_engine.process.rank" in child.cmdline() for child in children)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stage", HANGS)
def test_a_rank_that_hangs_in_a_start_is_lost(stage: str, backend: str, tiny: Path, tmp_path: Path) -> None:
    """Stopped as soon as it is there, or before the first step: nothing is closed, nothing is said."""
    gate = Gate(tmp_path / "steps")
    with gated_engine_server("e1", gate, "--backend", backend, "--core-ping-limit", "2") as engine:
        with Client(engine.address) as client:
            client.install_model("tiny", path=str(tiny), tensor_parallel=2, num_threads=2)
            gate.shut()  # However slow this process is, the start is not over when it comes to stop the rank.
            client.start_model("tiny", no_wait=True)
            reached = partial(warms_up, client) if stage == "warm-up" else partial(has_ranks, engine)
            wait_until(reached, f"there is no {stage}")
            core = core_of(engine)
            rank = other_rank(core)
            rank.suspend()
            gate.open()
            wait_until(lambda: the_model(client).state == "FAILED", "the start goes on")
            assert HANGS[stage] in str(the_model(client).failure)
            assert_gone([core, rank])
            install(client, tiny, "tiny", tensor_parallel=2)
            assert len(ids_of(start_all(client, "tiny")[:1])[0]) == LENGTH


@pytest.fixture(params=BACKENDS)
def ranks(request: pytest.FixtureRequest, tiny: Path) -> Iterator[tuple[Server, list[psutil.Process]]]:
    """An engine in the middle of answers by two ranks, and their processes."""
    with engine_server("e1", "--backend", request.param) as engine, Client(engine.address) as client:
        install(client, tiny, "tiny", tensor_parallel=2)
        queue = start_all(client, "tiny")[0]
        wait_until(lambda: queue.GeneratedLength() > 0, "nothing is generated")
        core = core_of(engine)
        yield engine, [core, other_rank(core)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_its_engine(number: int, ranks: tuple[Server, list[psutil.Process]]) -> None:
    engine, processes = ranks
    engine.process.send_signal(number)
    assert_gone(processes)


def test_a_stopped_rank_does_not_outlive_its_core(ranks: tuple[Server, list[psutil.Process]]) -> None:
    _, (core, rank) = ranks
    rank.suspend()
    core.kill()
    assert_gone([core, rank])


def assert_gone(processes: list[psutil.Process]) -> None:
    def gone(process: psutil.Process) -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    for process in processes:
        wait_until(lambda process=process: gone(process), f"{process.pid} goes on")  # type: ignore[misc]
