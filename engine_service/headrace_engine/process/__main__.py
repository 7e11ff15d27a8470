"""`python -m headrace_engine.process FD [BACKEND]`: a core on the socket that was inherited as FD."""

import logging
import os
import sys

from headrace_engine.process.child import main

if __name__ == "__main__":
    status = main(int(sys.argv[1]), early=sys.argv[2] if len(sys.argv) > 2 else None)
    logging.shutdown()
    os._exit(status)  # With torch loaded, the interpreter takes seconds to take itself apart.
