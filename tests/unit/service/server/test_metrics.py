"""The engine's metrics, as Prometheus reads them: of a core that the test plays, under a clock that it moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from headrace_engine.engine.models.measured import Measured
from headrace_engine.engine.results.observations import Observations
from headrace_engine.model_types import ModelState
from headrace_engine.request_types import ResumedSequence
from headrace_engine.result_types import FinishReason
from headrace_engine.service.metrics import server as metrics_server
from headrace_engine.service.metrics.server import LONGEST_HEAD, MOST_CONNECTIONS, MetricsServer
from headrace_engine.service.metrics.vllm_names import vllm_families
from headrace_engine.stat_types import CoreStat, Counters, EngineStat, PoolStat
from headrace_proto.pure.addresses import Address
from prometheus_client.parser import text_string_to_metric_families
from support.clocks.waiting import ends
from support.engine.rig import Rig

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
LABELS = {"engine": "e1", "model": "smol"}


@pytest.fixture
async def rig(model_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(model_path)
    yield rig
    for core in rig.launcher.cores:
        core.end_close()
    await rig.engine.close()


@pytest.fixture
async def port(rig: Rig) -> AsyncIterator[int]:
    server = MetricsServer(rig.engine)
    yield (await server.listen(Address("127.0.0.1", 0))).port
    await server.close()


async def ask(port: int, text: bytes) -> bytes:
    async with ends("no answer comes"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(text)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


async def scrape(port: int) -> Callable[..., float]:
    """Return what looks up a value by its name and labels, which are by default those of the model."""
    head, _, body = (await ask(port, b"GET /metrics HTTP/1.1\r\nhost: e1\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    found: Values = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value

    def value(name: str, labels: Mapping[str, str] = LABELS, **more: str) -> float:
        return found[name, frozenset({**labels, **more}.items())]

    return value


async def test_times_of_a_request_are_counted_in_their_buckets(rig: Rig, port: int) -> None:
    core = await rig.run()
    await rig.start(owner="team")
    key = rig.added().key
    rig.clock.advance(3.0)
    core.step({key: 10}, scheduled={key: 0})
    rig.clock.advance(0.25)
    core.step({key: 11}, ended={key: FinishReason.EOS})
    value = await scrape(port)
    assert value("headrace_first_token_seconds_sum") == 3.0
    assert value("headrace_first_token_seconds_bucket", le="2.0") == 0
    assert value("headrace_first_token_seconds_bucket", le="5.0") == 1
    assert value("headrace_queue_seconds_count") == 1
    assert value("headrace_inter_token_seconds_bucket", le="0.2") == 0
    assert value("headrace_inter_token_seconds_bucket", le="0.3") == 1
    assert value("headrace_request_seconds_sum") == 3.25
    assert value("headrace_step_sequences_sum") == value("headrace_step_duration_seconds_count") == 2
    assert value("headrace_prompt_length_tokens_sum") == 3
    assert value("headrace_generated_length_tokens_sum") == 2
    assert value("headrace_sequences_finished_total", reason="EOS") == 1
    assert value("headrace_owner_prompt_tokens_total", owner="team") == 3
    assert value("headrace_owner_generated_tokens_total", owner="team") == 2
    assert value("headrace_model_state", state="RUNNING") == 1
    assert value("headrace_engine_draining", {"engine": "e1"}) == 0


async def test_a_hand_over_is_counted_with_what_it_generated_here(rig: Rig, port: int) -> None:
    core = await rig.run()
    resume = (ResumedSequence(0, (5, 6)),)
    await rig.start(request_id="r", handover=1, resume=resume)
    key = rig.added().key
    core.step({key: 10}, scheduled={key: 0}, ended={key: FinishReason.EOS})
    value = await scrape(port)
    assert value("headrace_handovers_total") == 1
    assert value("headrace_generated_length_tokens_sum") == 1
    assert value("headrace_prompt_length_tokens_sum") == 0


async def test_routers_find_vllm_s_names(rig: Rig, port: int) -> None:
    core = await rig.run()
    await rig.start()
    first = rig.added().key
    await rig.start()
    pool = PoolStat(blocks_total=32, blocks_used=8, blocks_cached=4, blocks_free=20)
    counters = Counters(prefix_cache_hit_tokens=5, prefix_cache_miss_tokens=3)
    core.step({first: 10}, scheduled={first: 5}, stat=CoreStat(1, 1, pool, counters))
    value = await scrape(port)
    labels = {"engine": "e1", "model_name": "smol"}
    assert value("vllm:num_requests_running", labels) == 1
    assert value("vllm:num_requests_waiting", labels) == 1
    assert value("vllm:kv_cache_usage_perc", labels) == 0.25
    assert value("vllm:prefix_cache_queries_total", labels) == 8
    assert value("vllm:prefix_cache_hits_total", labels) == 5
    effective = rig.engine.get_model("smol").effective
    assert effective is not None
    block_size = str(effective.config.block_size)
    assert value("vllm:cache_config_info", labels, block_size=block_size, num_gpu_blocks="32") == 1


def test_adapters_in_use_are_in_labels() -> None:
    stat = EngineStat("smol", ModelState.RUNNING, "e1", "i", 1, time=7.0)
    model = Measured(stat, Observations(), 16, 64, 2, running_adapters=("a", "b"), waiting_adapters=("b",))
    family = next(each for each in vllm_families([model]) if each.name == "vllm:lora_requests_info")
    (sample,) = family.samples
    adapters = {"max_lora": "2", "running_lora_adapters": "a,b", "waiting_lora_adapters": "b"}
    assert sample.labels == {"engine": "e1", "model_name": "smol", **adapters}
    assert sample.value == 7.0


async def test_an_engine_without_models_is_there(rig: Rig, port: int) -> None:
    value = await scrape(port)
    about = rig.engine.server_info()
    labels = {"engine": "e1", "instance_id": about.instance_id, "build": about.build}
    assert value("headrace_engine_info", labels) == 1


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed"),
        (b"HEAD /metrics?a=1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"x" * (LONGEST_HEAD * 2), b""),
    ],
)
async def test_anything_else_is_refused(port: int, text: bytes, answer: bytes) -> None:
    assert (await ask(port, text)).partition(b"\r\n")[0] == answer


async def test_one_who_says_nothing_is_cut(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "PATIENCE", 0.05)
    assert await ask(port, b"GET /metrics") == b""


async def test_connections_are_bounded(rig: Rig, port: int) -> None:
    async with ends("connections are not closed"):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
        assert await ask(port, b"") == b""
        for _, writer in silent:
            writer.close()
        for reader, _ in silent:
            await reader.read()
    await scrape(port)


async def test_connections_are_shared_by_hosts(port: int) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
    async with ends("a host takes the connections of another one"):
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    for one in (writer, *(each for _, each in silent)):
        one.close()


async def test_closing_cuts_those_that_are_open(rig: Rig) -> None:
    server = MetricsServer(rig.engine)
    address = await server.listen(Address("127.0.0.1", 0))
    asked = [asyncio.create_task(ask(address.port, b"GET")) for _ in range(3)]
    # The answer to a fourth one shows that the server has taken those before it.
    await scrape(address.port)
    async with ends("the connection is not closed"):
        await server.close()
        assert await asyncio.gather(*asked) == [b""] * 3
