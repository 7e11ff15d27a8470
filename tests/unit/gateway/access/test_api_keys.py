"""The file of API keys: what it says, and what is refused of it."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest
from headrace_gateway.access.api_keys import MAX_FILE_BYTES, ApiKey, KeyFileError, new_key, read_keys

SHA = hashlib.sha256(b"hr_secret").hexdigest()
OTHER = hashlib.sha256(b"hr_other").hexdigest()


def read(tmp_path: Path, text: str) -> tuple[ApiKey, ...]:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    return read_keys(file)


def test_a_key_by_itself_may_use_every_model_and_is_no_admin(tmp_path: Path) -> None:
    (key,) = read(tmp_path, f'[keys.web]\nsha256 = "{SHA}"')
    assert (key.name, key.owner, key.admin, key.requests_per_minute) == ("web", "web", False, None)
    assert key.allows("smol")
    assert SHA not in repr(key)


def test_all_fields(tmp_path: Path) -> None:
    fields = 'owner = "team"\nadmin = true\nmodels = ["qwen*", "smol"]\nrequests_per_minute = 60'
    (key,) = read(tmp_path, f'[keys."a.b"]\nsha256 = "{SHA}"\n{fields}')
    assert (key.owner, key.admin, key.requests_per_minute) == ("team", True, 60)
    assert [key.allows(name) for name in ("qwen3", "smol", "smol2", "Qwen3", "")] == [True, True, False, False, False]


def test_a_new_key_is_found_in_its_own_lines() -> None:
    key, lines = new_key("web.1")
    table = tomllib.loads(lines)["keys"]["web.1"]
    assert table == {"sha256": hashlib.sha256(key.encode()).hexdigest()}
    assert len(key) >= 43
    assert new_key("web.1")[0] != key
    with pytest.raises(ValueError, match='"a b" cannot name a key'):
        new_key("a b")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "lists no key"),
        ("[keys]", "lists no key"),
        ("keys = 3", "lists no key"),
        ("[keys.web]", r'key "web": sha256 must be 64 hexadecimal digits'),
        ('[keys.web]\nsha256 = "00"', r'key "web": sha256 must be 64'),
        (f'[keys.web]\nsha256 = "{SHA.upper()}"', r'key "web": sha256 must be 64 hexadecimal digits in lower case'),
        (f'[keys."w b"]\nsha256 = "{SHA}"', r'key "w b": a name has at most 64'),
        (f'[keys.web]\nsha256 = "{SHA}"\nowner = ""', "owner is malformed"),
        (f'[keys.web]\nsha256 = "{SHA}"\nadmin = 1', "admin must be true or false"),
        (f'[keys.web]\nsha256 = "{SHA}"\nmetrics = "yes"', "metrics must be true or false"),
        (f'[keys.web]\nsha256 = "{SHA}"\nmodels = "smol"', "models must be a list"),
        (f'[keys.web]\nsha256 = "{SHA}"\nmodels = []', "models must be a list"),
        (f'[keys.web]\nsha256 = "{SHA}"\nmodels = [3]', "models must be a list"),
        (f'[keys.web]\nsha256 = "{SHA}"\nrequests_per_minute = 0', "requests_per_minute = 0; allowed: 1 to"),
        (f'[keys.web]\nsha256 = "{SHA}"\nrequests_per_minute = true', "requests_per_minute = True; allowed"),
        (f'[keys.web]\nsha256 = "{SHA}"\nmodel = ["a"]', r'key "web": "model" is no field .*did you mean models'),
        (f'[key.web]\nsha256 = "{SHA}"', '"key" is no field of a key file; did you mean keys'),
        (f'[keys.a]\nsha256 = "{SHA}"\n[keys.b]\nsha256 = "{SHA}"', 'keys "a" and "b" have one sha256'),
        ("[keys.web", "Expected .\\]. at the end of a table"),
        ("a = " + "[" * 5000, "nested too deeply|Invalid|recursion|line 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(KeyFileError, match=why) as failure:
        read(tmp_path, text)
    assert str(failure.value).startswith(str(tmp_path / "keys.toml"))
    assert "\n" not in str(failure.value)


def test_keys_of_one_owner_have_the_same_limits(tmp_path: Path) -> None:
    def keys(limit: str) -> str:
        first = f'[keys.a]\nsha256 = "{SHA}"\nowner = "team"\nrequests_per_minute = 60\n'
        return first + f'[keys.b]\nsha256 = "{OTHER}"\nowner = "team"\n{limit}'

    assert len(read(tmp_path, keys("requests_per_minute = 60"))) == 2
    for limit in ("", "requests_per_minute = 61"):
        with pytest.raises(KeyFileError, match='keys "a" and "b" have one owner, "team", but different requests'):
            read(tmp_path, keys(limit))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="no such file"):
        read_keys(tmp_path / "none.toml")
    with pytest.raises(KeyFileError, match="no such file"):
        read_keys(tmp_path)
    (tmp_path / "large").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(KeyFileError, match=f"has more than {MAX_FILE_BYTES} bytes"):
        read_keys(tmp_path / "large")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(KeyFileError, match="utf-8"):
        read_keys(tmp_path / "binary")
