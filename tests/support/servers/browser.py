"""A browser without a screen."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator

from playwright.async_api import Page, async_playwright

from support.clocks.waiting import LIMIT

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""Program of the browser; None: there is none."""


@contextlib.asynccontextmanager
async def opened(url: str, width: int = 1280, scheme: str = "light") -> AsyncIterator[Page]:
    """Open a page. Errors of its scripts, and what its policy blocks, fail the test at the end."""
    faults: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        context = await browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
        context.set_default_timeout(1000 * LIMIT)
        page = await context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if "Content Security Policy" in line.text else None)
        await page.goto(url)
        yield page
        await browser.close()
    assert not faults
