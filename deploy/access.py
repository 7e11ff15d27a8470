"""Makes what servers and callers prove themselves by, where it is not there yet; what is there stays.

Usage: access.py --secret=DIR --keys=DIR --metrics-key=DIR. Writes

* `secret` in the first: the secret that gateways send to engines;
* `keys.toml` and `key` in the second: the file for `headrace-gateway --keys`, and an API key that it allows everything;
* `key` in the third: an API key for Prometheus, which may read all metrics and use no model.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace_gateway.access.api_keys import new_key

NO_MODEL = "-"
"""A pattern that is no model's name."""


def write(file: Path, text: str, mode: int) -> None:
    """Write a file as a whole: half of it is never there under its name."""
    part = file.with_name(f"{file.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    part.write_text(text)
    part.chmod(mode)
    part.replace(file)


def make_secret(folder: Path) -> None:
    """Make the secret of engines."""
    if not (folder / "secret").exists():
        write(folder / "secret", f"{secrets.token_hex(32)}\n", 0o400)


def make_keys(keys: Path, metrics: Path) -> None:
    """Make both keys and their file. With a file of somebody else's, print the lines that it needs for Prometheus."""
    ours = not (keys / "keys.toml").exists()
    lines = ""
    if ours:
        key, lines = new_key("compose")
        lines += "admin = true\n"
        write(keys / "key", f"{key}\n", 0o400)
    if ours or not (metrics / "key").exists():
        key, allowed = new_key("prometheus")
        allowed += f'models = ["{NO_MODEL}"]\nmetrics = true\n'
        # Prometheus runs as a user of its own.
        write(metrics / "key", f"{key}\n", 0o444)
        if not ours:
            print(f"Append to {keys / 'keys.toml'}, if Prometheus is to read metrics:\n{allowed}")
        lines += f"\n{allowed}"
    if ours:
        write(keys / "keys.toml", lines, 0o400)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is missing. Return the exit status."""
    parser = argparse.ArgumentParser(prog="access.py", description="Make a secret and API keys where there are none.")
    for name in ("secret", "keys", "metrics-key"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="DIR")
    given = parser.parse_args(arguments)
    try:
        make_secret(given.secret)
        make_keys(given.keys, given.metrics_key)
    except OSError as error:
        print(f"access.py: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
