"""Section 6: failures carry a code, a reason and what a person needs."""

from __future__ import annotations

import pytest
from headrace import Client, InvalidRequestError, NotFoundError, OverloadedError
from headrace.types import ModelState
from support.contract.places import LONG_LENGTH, MODEL, SMALL_POOL_MODEL, Place


def test_overload_is_an_answer_with_a_time_to_come_back(client: Client, place: Place) -> None:
    sizes = {"max_batch": 1, "max_waiting": 3, "max_length": LONG_LENGTH}
    client.install_model("narrow", path=str(place.long), **sizes, **place.settings)
    client.start_model("narrow")
    accepted = 0
    with pytest.raises(OverloadedError, match="max_waiting 3") as refusal:
        for _ in range(6):
            client.start_request("narrow", ids=[1, 2], ignore_eos=True)
            accepted += 1
    assert accepted in (3, 4)
    assert refusal.value.reason == "QUEUE_FULL"
    assert refusal.value.retry_after is not None
    assert refusal.value.retry_after > 0
    assert refusal.value.details["max_waiting"] == 3
    for request in client.list_requests("narrow"):
        client.release_request(request.handle)
    client.start_request("narrow", ids=[1, 2], max_new_tokens=1)
    client.sync_request(model="narrow")
    client.stop_model("narrow")
    client.release_model("narrow")


def test_results_that_nobody_releases_are_bounded(client: Client, place: Place) -> None:
    client.install_model("bounded", path=str(place.folder), max_length=64, max_result_bytes=20_000, **place.settings)
    client.start_model("bounded")
    whole = {"ids": [1, 2], "max_new_tokens": 60, "ignore_eos": True}  # 2,048 + 60 × 128 bytes
    first, _ = client.start_request("bounded", **whole)  # type: ignore[arg-type]
    client.start_request("bounded", **whole)  # type: ignore[arg-type]
    with pytest.raises(OverloadedError, match="19456 are taken and this request may need 9728") as refusal:
        client.start_request("bounded", **whole)  # type: ignore[arg-type]
    assert refusal.value.reason == "RESULTS_FULL"
    assert (refusal.value.retry_after or 0) > 0
    client.release_request(first)
    client.start_request("bounded", **whole)  # type: ignore[arg-type]
    client.sync_request(model="bounded")
    client.stop_model("bounded")
    client.release_model("bounded")


def test_errors_name_the_request(client: Client) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        client.start_request(MODEL, ids=[9999], request_id="my-own-request")
    assert refusal.value.request_id == "my-own-request"
    assert "INVALID_FIELD" in str(refusal.value)


def test_an_unknown_model_lists_the_known_ones(client: Client) -> None:
    with pytest.raises(NotFoundError, match="nobody") as refusal:
        client.start_request("nobody", ids=[1])
    assert refusal.value.reason == "UNKNOWN_MODEL"


def test_all_violations_are_named_not_only_the_first(client: Client) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        client.start_request(MODEL, ids=[1], top_p=3.0, temperature=-2.0)
    fields = {violation["field"] for violation in refusal.value.details["field_violations"]}
    assert fields == {"config.top_p", "config.temperature"}


def test_statistics_of_the_engine_balance(client: Client) -> None:
    client.start_request(SMALL_POOL_MODEL, ids=[1, 2, 3], max_new_tokens=40, ignore_eos=True)
    client.sync_request(model=SMALL_POOL_MODEL)
    stat = client.engine_stats(SMALL_POOL_MODEL)[0]
    assert stat.state is ModelState.RUNNING
    assert stat.engine == "e1"
    assert len(stat.instance_id) == 16
    assert stat.core_epoch == 1
    assert stat.api_version == "1.0"
    assert stat.blocks_total == 20
    assert stat.tokens_total == 320
    assert stat.blocks_used + stat.blocks_cached + stat.blocks_free == 20
    assert stat.generated_tokens >= 40
    assert stat.prefilled_tokens >= 3
    assert stat.prefix_cache_hit_tokens + stat.prefix_cache_miss_tokens >= 3
    assert stat.pool_bytes_total > stat.pool_bytes_used > 0


def test_server_info_names_role_and_version(place: Place, client: Client) -> None:
    info = client.server_info()
    assert info.role == ("GATEWAY" if place.path == "gateway" else "ENGINE")
    assert info.api_version == "1.0"
    assert not info.draining
    if place.path == "gateway":
        assert [(engine.engine, engine.reachable) for engine in info.engines] == [("e1", True)]
