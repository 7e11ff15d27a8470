"""Filter for gRPC's own log messages about clients that disconnected."""

from __future__ import annotations

import logging

_GONE = "ExecuteBatchError raised in core by servicer method"


class GoneClients(logging.Filter):
    """Lowers to info the errors that gRPC logs when a server writes to a client that has just disconnected."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        if record.name.startswith("grpc.") and record.getMessage().startswith(_GONE):
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.exc_info = None
        return True
