"""`python -m headrace_engine`: the engine service."""

import sys

from headrace_engine.service.program.main import main

if __name__ == "__main__":
    sys.exit(main())
