"""What a started server keeps is exempt from garbage collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from headrace_proto.pure.collecting import freeze_objects


class Cycle:
    """An object that only a garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_collections_look_at_nothing_from_before() -> None:
    kept = Cycle()
    freeze_objects()
    assert gc.get_freeze_count()
    assert not any(each is kept for each in gc.get_objects())
    assert kept.itself is kept


def test_garbage_from_before_is_freed_at_once() -> None:
    garbage = weakref.ref(Cycle())
    freeze_objects()
    assert garbage() is None


def test_what_has_become_garbage_is_freed_the_next_time() -> None:
    kept = Cycle()
    freeze_objects()
    found = weakref.ref(kept)
    del kept
    gc.collect()
    assert found() is not None
    freeze_objects()
    assert found() is None
