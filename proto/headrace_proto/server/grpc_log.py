"""What gRPC's own log says of clients that went away."""

from __future__ import annotations

import logging

_GONE = "ExecuteBatchError raised in core by servicer method"


class GoneClients(logging.Filter):
    """Lowers to info what gRPC logs as an error when a server's write meets a client that has just gone."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        if record.name.startswith("grpc.") and record.getMessage().startswith(_GONE):
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.exc_info = None
        return True
