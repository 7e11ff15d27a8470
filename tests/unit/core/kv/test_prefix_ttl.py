"""prefix_cache_ttl: a prefix unused for that long is computed again."""

from __future__ import annotations

from headrace_engine.ipc.commands import Ping
from unit.core.conftest import MakeRig

PROMPT = list(range(1, 12))  # Two full blocks of four, and three ids more.


def test_each_use_of_a_prefix_renews_its_time(make_rig: MakeRig) -> None:
    rig = make_rig(prefix_cache_ttl=60.0)
    rig.add(PROMPT)
    rig.run()
    for _ in range(3):
        rig.now += 59.0
        key = rig.add(PROMPT)
        rig.run()
        assert rig.cached[key] == 8
    rig.assert_all_complete()


def test_after_it_nothing_is_found_and_the_blocks_are_free(make_rig: MakeRig) -> None:
    rig = make_rig(prefix_cache_ttl=60.0)
    rig.add(PROMPT)
    rig.run()
    assert rig.stat.pool.blocks_cached > 0
    rig.now += 61.0
    key = rig.add(PROMPT)
    rig.run()
    assert rig.cached[key] == 0
    rig.assert_all_complete()


def test_without_it_a_prefix_stays_while_blocks_are_left(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.add(PROMPT)
    rig.run()
    rig.now += 1e9
    key = rig.add(PROMPT)
    rig.run()
    assert rig.cached[key] == 8


def test_a_prefix_in_use_does_not_expire(make_rig: MakeRig) -> None:
    """A request that runs longer than the time: its own blocks stay, and others may still share its prompt."""
    rig = make_rig(prefix_cache_ttl=10.0)
    rig.add(PROMPT, 40)
    for _ in range(20):
        rig.now += 5.0
        rig.step()
    key = rig.add(PROMPT)
    rig.run()
    assert rig.cached[key] == 8
    rig.assert_all_complete()


def test_an_idle_core_reports_expiry_when_pinged(make_rig: MakeRig) -> None:
    rig = make_rig(prefix_cache_ttl=10.0)
    rig.add(PROMPT)
    rig.run()
    assert rig.stat.pool.blocks_cached > 0
    rig.now += 11.0
    rig.link.commands.append(Ping(1))
    rig.core.step()
    rig.link.messages = [message for message in rig.link.messages if not hasattr(message, "number")]
    rig.step()
    assert rig.stat.pool.blocks_cached == 0
