"""The engine service whose cores compute on the simulated device: `python engine.py ARGUMENT...`.

Its cores are `python engine.py core FD`.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from headrace_engine.process import launch_process
from headrace_engine.process import main as core_main
from headrace_engine.service.program.main import main as service_main

sys.path.insert(0, str(Path(__file__).parents[2]))

_CORE = (sys.executable, __file__, "core")


def main() -> int:
    """Run the service, or one of its cores."""
    if sys.argv[1:2] == ["core"]:
        from support.sim.device import make_runner

        return core_main(int(sys.argv[2]), make_runner)
    return service_main(["--backend", "cuda", *sys.argv[1:]], launcher=partial(launch_process, program=_CORE))


if __name__ == "__main__":
    sys.exit(main())
