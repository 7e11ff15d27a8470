"""`python -m headrace_engine.process FD`: a core on the socket that was inherited as FD."""

import sys

from headrace_engine.process.child import main

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
