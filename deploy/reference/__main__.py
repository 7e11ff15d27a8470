"""Write the page of HTTP, and the pages of the Python client into a folder: `python -m reference FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from reference import http_page, python_pages

ROOT = Path(__file__).parents[2]
HTTP_PAGE = ROOT / "docs" / "api" / "http.md"

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    HTTP_PAGE.write_text(http_page.page())
    python_pages.build(folder)
    print(f"open {folder / 'index.html'}")
