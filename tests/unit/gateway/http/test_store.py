"""What stored responses may take in a gateway."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from headrace_gateway.http.callers import Caller
from headrace_gateway.http.failures import Failure
from headrace_gateway.http.openai.responses import store

ONE, ANOTHER = Caller("ipv4:192.0.2.1:5000"), Caller("ipv4:192.0.2.2:5000")


def test_a_response_beyond_its_host_s_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_BYTES", 10 << 20)
    kept = store.Store(lambda handle: None, lambda: lambda: None)
    kept.reserve(ONE, 7 << 20)
    kept.give_back(ONE, 7 << 20)
    kept.reserve(ONE, 7 << 20)
    with pytest.raises(Failure) as caught:
        kept.reserve(ONE, 1 << 20)
    assert caught.value.code == HTTPStatus.TOO_MANY_REQUESTS
    assert caught.value.retry_after is not None
    kept.reserve(ANOTHER, 1 << 20)
