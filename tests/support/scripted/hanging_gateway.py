"""A gateway whose drain stops its event loop: `python -m support.scripted.hanging_gateway ARGUMENTS`.

It may take a second beyond its limit.
"""

from __future__ import annotations

import sys
import threading

from headrace_gateway import server
from headrace_gateway.main import main


async def hang(self: server.Gateway) -> None:
    """Hang forever, like a write to a log that is not read."""
    server.log.info("hanging")
    threading.Event().wait()


if __name__ == "__main__":
    server.GRACE = 1.0
    server.Gateway.drain = hang  # type: ignore[method-assign]
    sys.exit(main())
