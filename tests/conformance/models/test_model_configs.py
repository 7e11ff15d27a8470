"""Section 1: what a model's config asks, what becomes of it, and what is refused."""

from __future__ import annotations

import pytest
from headrace import (
    Client,
    InvalidRequestError,
)
from headrace.types import FinishReason
from support.contract.places import Folders, Place
from support.contract.second_model import NAME, forget


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight_quant_group_size", 24),
        ("logn_attention", True),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(client: Client, folders: Folders, field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field) as refusal:
        client.install_model(NAME, path=str(folders.tiny), **{field: value})  # type: ignore[arg-type]
    assert refusal.value.reason == "NOT_SUPPORTED"
    assert refusal.value.details["field_violations"][0]["field"] == f"config.{field}"


@pytest.mark.parametrize(
    ("field", "value"),
    [("block_size", 24), ("block_size", 4), ("max_batch", 0), ("max_length", 1), ("memory_ratio", 1.5),
     ("memory_ratio", float("nan")), ("max_prefill_tokens", 1), ("max_result_bytes", 0), ("max_lease", 0),
     ("default_lease", {"running": 3601})],
)  # fmt: skip
def test_a_value_out_of_range_is_refused(client: Client, folders: Folders, field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field) as refusal:
        client.install_model(NAME, path=str(folders.tiny), **{field: value})  # type: ignore[arg-type]
    assert refusal.value.reason == "INVALID_FIELD"


def test_a_request_to_max_length_runs_when_it_runs_alone(client: Client) -> None:
    _, queue = client.start_request("small-pool", ids=[1, 2, 3], ignore_eos=True)
    assert sum(len(elements.ids_from_generate) for elements in queue) == 125
    assert queue.finish_reason is FinishReason.MAX_LENGTH


@pytest.mark.parametrize(("ttl", "reused"), [(3600.0, 96), (1e-6, 0), (None, 96)])
def test_cached_prefixes_are_kept_as_long_as_the_config_says(
    client: Client, place: Place, ttl: float | None, reused: int
) -> None:
    client.install_model(NAME, path=str(place.folder), max_length=256, prefix_cache_ttl=ttl, **place.settings)
    try:
        client.start_model(NAME)
        effective = client.get_model(NAME)[0].effective
        assert effective is not None
        assert effective.config.get("prefix_cache_ttl") == ttl
        for length in (0, reused):
            handle, queue = client.start_request(NAME, ids=list(range(1, 101)), max_new_tokens=1)
            elements = queue.Get()
            assert elements is not None
            assert elements.prefix_cache_len == length
            client.release_request(handle)
    finally:
        forget(client, NAME)


@pytest.mark.sim
def test_bc081_what_comes_back_from_host_memory_is_told(client: Client, place: Place) -> None:
    """A pool of eight blocks, which the second request fills: the whole prompt of the first comes back."""
    sizes = {"max_length": 128, "num_blocks": 8, "num_host_blocks": 20}
    client.install_model(NAME, path=str(place.folder), **sizes, **place.settings)
    try:
        client.start_model(NAME)
        effective = client.get_model(NAME)[0].effective
        assert effective is not None
        assert (effective.config.get("num_host_blocks"), effective.host_kv_tokens) == (20, 320)
        assert effective.host_kv_bytes == effective.kv_bytes // 8 * 20
        [before] = client.engine_stats(NAME)
        for first, pool, host in ((1, 0, 0), (200, 0, 0), (1, 0, 96), (1, 96, 0)):
            ids = list(range(first, first + 101))
            handle, queue = client.start_request(NAME, ids=ids, max_new_tokens=20, ignore_eos=True)
            parts = list(queue)
            assert {(part.prefix_cache_len, part.prefix_len_gpu, part.prefix_len_cpu) for part in parts} == {
                (pool + host, pool, host)
            }
            assert queue.RequestStatInfo()["context_cached_length"] == pool + host
            client.release_request(handle)
        [stat] = client.engine_stats(NAME)
        assert (stat.host_blocks_total, stat.host_blocks_used > 0) == (20, True)
        assert stat.prefix_cache_hit_tokens - before.prefix_cache_hit_tokens == 192
        assert stat.prefix_cache_host_hit_tokens - before.prefix_cache_host_hit_tokens == 96
    finally:
        forget(client, NAME)
