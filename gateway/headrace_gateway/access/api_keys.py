"""API keys: the file that lists them, and keys themselves. A key is stored as its SHA-256 only."""

from __future__ import annotations

import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from headrace_proto.pure.suggestions import did_you_mean
from headrace_proto.server.secrets import digest

MAX_FILE_BYTES = 4 << 20
"""Maximum bytes of a key file: some 20,000 keys."""

MAX_KEY_LENGTH = 256
"""Maximum characters of a key that is sent."""

_PREFIX = "hr_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "waiting_requests", "kept_bytes")
"""Limits of an owner, which its keys set."""

_MOST = 2**53


class KeyFileError(ValueError):
    """A key file that cannot be used; the text is one line that names the file, the key and the field."""


@dataclass(frozen=True)
class ApiKey:
    """A key, and what it allows.

    Attributes:
        name: of the key, in logs and metrics.
        digest: SHA-256 of the key.
        owner: whose requests its calls start; keys with one owner share its requests and limits.
        admin: it may install, start, stop, release and write models, and read all metrics.
        metrics: it may read the metrics of all keys and owners.
        models: patterns of the models that it may use, such as "qwen*".
        requests_per_minute: requests that may be started, of all keys with this owner; None: no limit.
        tokens_per_minute: tokens of prompts, and sampled ones, of its requests; None: no limit.
        concurrent_requests: its requests that have not ended; None: no limit.
        waiting_requests: its requests that wait for a slot of a batch; None: no limit.
        kept_bytes: bytes reserved for its requests; None: no limit but that of the models.
    """

    name: str
    digest: bytes = field(repr=False)
    owner: str
    admin: bool = False
    metrics: bool = False
    models: tuple[str, ...] = ("*",)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    waiting_requests: int | None = None
    kept_bytes: int | None = None

    def allows(self, model_name: str) -> bool:
        """True if the key may use a model."""
        return any(fnmatchcase(model_name, pattern) for pattern in self.models)


_FIELDS = ("sha256", *(one.name for one in fields(ApiKey) if one.name not in ("name", "digest")))


def new_key(name: str) -> tuple[str, str]:
    """Make a random key of 256 bits. Return it, and the lines of a key file that allow it.

    Raises:
        ValueError: the name is malformed.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f'"{name:.100}" cannot name a key: {_ALLOWED_NAME}')
    key = _PREFIX + secrets.token_urlsafe(32)
    return key, f'[keys."{name}"]\nsha256 = "{digest(key).hex()}"\n'


def read_keys(file: Path) -> tuple[ApiKey, ...]:
    """Read a key file.

    Raises:
        KeyFileError: it cannot be read or parsed, lists no key, or a key has a wrong field.
    """
    try:
        return _parse(_content(file))
    except OSError as error:
        raise KeyFileError(f"{file}: {error.strerror or error}") from None
    except ValueError as error:
        raise KeyFileError(f"{file}: {error}") from None


def _content(file: Path) -> str:
    if not file.is_file():
        raise ValueError("no such file")
    with file.open("rb") as stream:
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"has more than {MAX_FILE_BYTES} bytes, the limit of a key file")
    return data.decode()


def _parse(text: str) -> tuple[ApiKey, ...]:
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    _refuse_unknown("", document, ("keys",))
    tables = document.get("keys", {})
    if not isinstance(tables, dict) or not tables:
        raise ValueError("lists no key: write a table [keys.NAME] for each (headrace-gateway --new-key NAME)")
    keys = tuple(_read_key(name, table) for name, table in tables.items())
    by_digest: dict[bytes, str] = {}
    for key in keys:
        if (other := by_digest.setdefault(key.digest, key.name)) != key.name:
            raise ValueError(f'keys "{other}" and "{key.name}" have one sha256: each needs a key of its own')
    _check_owners(keys)
    return keys


_ALLOWED_NAME = 'a name has at most 64 letters, digits, ".", "_" and "-"'


def _read_key(name: str, table: Any) -> ApiKey:
    where = f'key "{name:.100}"'
    if not _NAME.fullmatch(name):
        raise ValueError(f"{where}: {_ALLOWED_NAME}")
    if not isinstance(table, dict):
        raise ValueError(f"{where} is no table: write [keys.{name}]")
    _refuse_unknown(f"{where}: ", table, _FIELDS)
    sha256 = table.get("sha256")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"{where}: sha256 must be 64 hexadecimal digits in lower case")
    owner = table.get("owner", name)
    if not isinstance(owner, str) or not _NAME.fullmatch(owner):
        raise ValueError(f"{where}: owner is malformed: {_ALLOWED_NAME}")
    admin, metrics = (_read_flag(where, one, table.get(one, False)) for one in ("admin", "metrics"))
    limits = {one: _read_count(where, one, table[one]) for one in LIMITS if one in table}
    models = _read_models(where, table.get("models", ["*"]))
    return ApiKey(name, bytes.fromhex(sha256), owner, admin, metrics, models, **limits)


def _read_flag(where: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {name} must be true or false")
    return value


def _read_models(where: str, models: Any) -> tuple[str, ...]:
    if not isinstance(models, list) or not models or not all(isinstance(one, str) and one for one in models):
        raise ValueError(f'{where}: models must be a list of names or patterns, such as ["qwen*"]')
    return tuple(models)


def _read_count(where: str, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise ValueError(f"{where}: {name} = {value!r:.40}; allowed: 1 to {_MOST}")
    return value


def _check_owners(keys: tuple[ApiKey, ...]) -> None:
    """Refuse keys of one owner with different limits: the limits are the owner's."""
    limits: dict[str, ApiKey] = {}
    for key in keys:
        first = limits.setdefault(key.owner, key)
        for limit in LIMITS:
            if getattr(first, limit) != getattr(key, limit):
                raise ValueError(
                    f'keys "{first.name}" and "{key.name}" have one owner, "{key.owner}", but different {limit}'
                )


def _refuse_unknown(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in table:
        if name not in known:
            raise ValueError(f'{where}"{name:.100}" is no field of a key file{did_you_mean(name, known)}')
