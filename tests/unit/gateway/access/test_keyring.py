"""Keys are found by their digest, in the newest good state of their file; starts are counted by owner."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_gateway.access.api_keys import KeyFileError, new_key
from headrace_gateway.access.keyring import Keyring
from headrace_gateway.access.rates import Rates


class Clock:
    """Time that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_only_whole_keys_of_the_file_are_found(tmp_path: Path) -> None:
    key, lines = new_key("web")
    file = tmp_path / "keys.toml"
    file.write_text(lines)
    ring = Keyring(file)
    found = ring.find(key)
    assert found is not None
    assert found.name == "web"
    for wrong in ("", key[:-1], key + "x", key.swapcase(), "x" * 100_000, "é"):
        assert ring.find(wrong) is None


def test_a_changed_file_takes_effect_and_a_broken_one_does_not(tmp_path: Path) -> None:
    clock = Clock()
    (first, lines), (second, others) = new_key("first"), new_key("second")
    file = tmp_path / "keys.toml"
    file.write_text(lines)
    ring = Keyring(file, clock)
    (tmp_path / "new").write_text(others)
    (tmp_path / "new").rename(file)
    clock.now += 2
    assert ring.find(first) is None
    assert ring.find(second) is not None
    file.write_text("[keys.second]\nsha256 = 3")
    clock.now += 2
    assert ring.find(second) is not None
    file.unlink()
    clock.now += 2
    assert ring.find(second) is not None
    file.write_text(lines)
    clock.now += 2
    assert ring.find(second) is None
    assert ring.find(first) is not None


def test_a_gateway_does_not_start_with_a_broken_file(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        Keyring(tmp_path / "keys.toml")


def test_a_minute_of_starts_may_come_at_once() -> None:
    clock = Clock()
    rates = Rates(clock)
    assert [rates.take("a", 3) for _ in range(3)] == [0, 0, 0]
    assert rates.take("a", 3) == pytest.approx(20)
    assert rates.take("b", 3) == 0
    clock.now += 19
    assert rates.take("a", 3) == pytest.approx(1)
    clock.now += 1.001
    assert rates.take("a", 3) == 0
    assert rates.take("a", 3) == pytest.approx(20, rel=0.01)
    clock.now += 3600
    assert [rates.take("a", 3) > 0 for _ in range(4)] == [False, False, False, True]
