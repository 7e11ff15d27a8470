"""Measurements of Headrace, each started from the root of the repository, as in `python -m bench.service`.

`accuracy`, `cpu`, `gpu`, `kernels`, `scheduling` and `service` measure; `peers` runs what ours is compared with;
`common` is what they share. RESULTS.md has the conclusions, results/ the tables and the raw figures. What the tests
support themselves with is found in tests/ by its own package, `support`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
