"""Run the gateway: `python -m headrace_gateway`."""

import sys

from headrace_gateway.main import main

sys.exit(main())
