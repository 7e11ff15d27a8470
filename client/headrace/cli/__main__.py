"""`python -m headrace.cli`, the same as `headrace`."""

import sys

from headrace.cli.main import main

sys.exit(main())
