"""Downloads the wheel of torch that pip would install here to wheels/, if it is a CPU build.

Image builds look there first. If pip would take another build, wheels/ stays as it is, and the image build takes a CPU
build from TORCH_INDEX.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

WHEELS = Path(__file__).parents[1] / "wheels"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def version_here() -> str:
    """Return the version of torch that pip would install, such as 2.13.0+cpu; "" if it finds none."""
    question = (*PIP, "install", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", "torch")
    done = subprocess.run(question, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return str(json.loads(done.stdout)["install"][0]["metadata"]["version"]) if done.returncode == 0 else ""


def main() -> int:
    """Fill wheels/ unless it has a wheel of torch; return the exit status."""
    WHEELS.mkdir(exist_ok=True)
    if any(WHEELS.glob("torch-*.whl")) or not version_here().endswith("+cpu"):
        return 0
    return subprocess.run((*PIP, "download", "--no-deps", "--dest", str(WHEELS), "torch")).returncode


if __name__ == "__main__":
    sys.exit(main())
