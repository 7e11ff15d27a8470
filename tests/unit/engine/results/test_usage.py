"""What owners use of an engine: who is remembered."""

from __future__ import annotations

import pytest
from headrace_engine.engine.results import usage
from headrace_engine.engine.results.usage import Usage, UsageCounts
from headrace_engine.engine.sessions.usage_watch import UsageWatch


def use(counts: UsageCounts, owner: str, tokens: int) -> None:
    """A request that begins and ends."""
    counts.add_request(owner, 1)
    with counts.changing(owner) as counted:
        counted.prompt_tokens += tokens
    counts.add_request(owner, -1)


def remembered(counts: UsageCounts) -> set[str]:
    return {one.owner for one in counts.changed(0)[0]}


def test_quiet_owners_are_forgotten_beside_long_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_REMEMBERED", 3)
    counts = UsageCounts()
    counts.add_request("long", 1)
    with counts.changing("kept") as counted:
        counted.bytes += 1
    for number in range(100):
        use(counts, f"o{number}", 1)
    assert remembered(counts) == {"long", "kept", "o97", "o98", "o99"}
    counts.add_request("long", -1)
    assert remembered(counts) == {"long", "kept", "o98", "o99"}
    use(counts, "o98", 1)
    use(counts, "new", 1)
    assert remembered(counts) == {"long", "kept", "o98", "new"}


def test_a_forgotten_owner_is_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_REMEMBERED", 1)
    counts = UsageCounts()
    use(counts, "a", 100)

    def read(version: int) -> tuple[list[Usage], int]:
        changed, newest = counts.changed(version)
        return [one.now(0) for one in changed], newest

    def told() -> dict[str, Usage]:
        watch.poll()
        found = {}
        while watch.pending:
            one = watch.take()
            found[one.owner] = one
        return found

    watch = UsageWatch(read)
    before = told()["a"]
    assert before.prompt_tokens == 0
    use(counts, "a", 5)
    assert told()["a"] == Usage("a", prompt_tokens=5, count=before.count)
    use(counts, "b", 1)
    use(counts, "a", 7)
    found = told()["a"]
    assert (found.prompt_tokens, found.count != before.count) == (7, True)
    use(counts, "a", 1)
    assert told()["a"] == Usage("a", prompt_tokens=8, count=found.count)
