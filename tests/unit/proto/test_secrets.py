"""Files of secrets, and comparing what was sent with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_proto.server.secrets import MAX_LENGTH, MIN_LENGTH, digest, is_one_of, read_secrets

FIRST, SECOND = "a" * MIN_LENGTH, "b" * MAX_LENGTH


def test_one_secret_a_line(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"\n{FIRST} \r\n\n{SECOND}")
    assert read_secrets(file) == (FIRST, SECOND)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "has no secret"),
        (b" \n\n", "has no secret"),
        (b"short", "secret 1 has 5 characters; allowed: 32 to 256"),
        (FIRST.encode() + b"\n" + b"c" * (MAX_LENGTH + 1), "secret 2 has 257 characters"),
        (b"a" * 40 + b"\x07", "characters other than printable ASCII"),
        ("ä".encode() * 40, "characters other than printable ASCII"),
        (b"a" * 70_000, "more than 65536 bytes"),
    ],
)
def test_what_is_no_secret_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=why) as failure:
        read_secrets(file)
    assert FIRST not in str(failure.value)


def test_there_must_be_a_file(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match="no such file"):
            read_secrets(file)


def test_only_equal_texts_are_one_of_them() -> None:
    digests = [digest(FIRST), digest(SECOND)]
    assert is_one_of(FIRST, digests)
    assert is_one_of(SECOND, digests)
    for other in ("", FIRST[:-1], FIRST + "a", "é"):
        assert not is_one_of(other, digests)
    assert not is_one_of("", [])
