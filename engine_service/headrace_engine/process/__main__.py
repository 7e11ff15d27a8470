"""`python -m headrace_engine.process FD [BACKEND [PATH]]`: runs a core on the socket inherited as FD."""

import logging
import os
import sys

from headrace_engine.process.child import main

if __name__ == "__main__":
    descriptor, early, model, *_ = (*sys.argv[1:], None, None)
    assert descriptor is not None
    status = main(int(descriptor), early=early, model=model or "")
    logging.shutdown()
    os._exit(status)  # With torch loaded, the interpreter takes seconds to shut down.
