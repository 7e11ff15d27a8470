"""Takes the pictures of docs/console.md, of the service that `make run HTTP_PORT=7080` starts, under some load.

Usage: python deploy/screenshots.py http://127.0.0.1:7080 docs/images. It needs the tools of tests, and Chromium.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, Page, sync_playwright

MODEL, CALLERS, SECONDS = "smol", 3, 40
WIDTH = 1180
QUESTION = "Where does the river Rhine begin?"


@contextmanager
def load(url: str) -> Iterator[None]:
    """Have callers ask one question after another."""
    over = threading.Event()

    def ask() -> None:
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True}
        sent = Request(f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        while not over.is_set():
            with suppress(URLError), urlopen(sent, timeout=120) as answer:
                answer.read()

    callers = [threading.Thread(target=ask, daemon=True) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    try:
        yield
    finally:
        over.set()


def opened(browser: Browser, url: str, view: str, scheme: str) -> Page:
    """Open a view in light or dark colors."""
    context = browser.new_context(viewport={"width": WIDTH, "height": 760}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{url}/console/#{view}")
    return page


def take(url: str, folder: Path) -> None:
    """Take all pictures."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        with load(url):
            overviews = {scheme: opened(browser, url, "overview", scheme) for scheme in ("light", "dark")}
            requests = opened(browser, url, "requests", "light")
            time.sleep(SECONDS)  # The charts have a point a second.
            for scheme, page in overviews.items():
                name = "console-overview.png" if scheme == "light" else "console-overview-dark.png"
                page.screenshot(path=folder / name, full_page=True)
            requests.screenshot(path=folder / "console-requests.png")
        page = opened(browser, url, "playground", "dark")
        for label, value in (("Seed", "7"), ("Most tokens", "60"), ("Temperature", "0.7"), ("Message", QUESTION)):
            page.get_by_label(label).fill(value)
        page.get_by_label("Message").press("Enter")
        page.get_by_text("first after").wait_for(timeout=120_000)
        page.locator(".token").nth(3).click()
        page.screenshot(path=folder / "console-playground.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    take(sys.argv[1], Path(sys.argv[2]))
