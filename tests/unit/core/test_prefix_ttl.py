"""prefix_cache_ttl: what nobody has used for so long is computed again."""

from __future__ import annotations

from headrace_engine.commands import Ping
from unit.core.conftest import MakeBench

PROMPT = list(range(1, 12))  # Two full blocks of four, and three ids more.


def test_within_its_time_a_prefix_is_reused_and_each_use_begins_it_anew(make_bench: MakeBench) -> None:
    bench = make_bench(prefix_cache_ttl=60.0)
    bench.add(PROMPT)
    bench.run()
    for _ in range(3):
        bench.now += 59.0
        key = bench.add(PROMPT)
        bench.run()
        assert bench.cached[key] == 8
    bench.assert_all_complete()


def test_after_it_nothing_is_found_and_the_blocks_are_free(make_bench: MakeBench) -> None:
    bench = make_bench(prefix_cache_ttl=60.0)
    bench.add(PROMPT)
    bench.run()
    assert bench.stat.blocks_cached > 0
    bench.now += 61.0
    key = bench.add(PROMPT)
    bench.run()
    assert bench.cached[key] == 0
    bench.assert_all_complete()


def test_without_it_a_prefix_stays_as_long_as_there_is_room(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add(PROMPT)
    bench.run()
    bench.now += 1e9
    key = bench.add(PROMPT)
    bench.run()
    assert bench.cached[key] == 8


def test_what_somebody_uses_is_not_dropped_under_him(make_bench: MakeBench) -> None:
    """A request that runs longer than the time: its own blocks stay, and others may still share its prompt."""
    bench = make_bench(prefix_cache_ttl=10.0)
    bench.add(PROMPT, 40)
    for _ in range(20):
        bench.now += 5.0
        bench.step()
    key = bench.add(PROMPT)
    bench.run()
    assert bench.cached[key] == 8
    bench.assert_all_complete()


def test_an_idle_core_tells_of_it_when_it_is_asked_for_a_sign_of_life(make_bench: MakeBench) -> None:
    bench = make_bench(prefix_cache_ttl=10.0)
    bench.add(PROMPT)
    bench.run()
    assert bench.stat.blocks_cached > 0
    bench.now += 11.0
    bench.link.commands.append(Ping(1))
    bench.core.step()
    bench.link.messages = [message for message in bench.link.messages if not hasattr(message, "number")]
    bench.step()
    assert bench.stat.blocks_cached == 0
