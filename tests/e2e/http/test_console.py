"""The console in a browser, against a real gateway and engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from axe_playwright_python.async_playwright import Axe
from axe_playwright_python.base import AxeResults
from headrace import Client
from headrace_gateway.access.api_keys import new_key
from playwright.async_api import Page, expect
from support.clocks.waiting import LIMIT, wait_until
from support.servers.browser import BROWSER, opened
from support.servers.gate import Gate
from support.servers.http_servers import HttpGateway, http_gateway
from support.servers.processes import Server

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium (Debian: apt-get install chromium)")

expect.set_options(timeout=1000 * LIMIT)
VIEWS = ("overview", "models", "requests", "playground")
HOSTILE = "<img src=x onerror=document.title='broken'>"


def at(gateway: HttpGateway, view: str) -> str:
    return f"http://{gateway.http}/console/#{view}"


def row(page: Page, text: str) -> Any:
    return page.get_by_role("row").filter(has_text=text)


async def test_the_overview_counts_what_runs(gateway: HttpGateway, grpc: Client, gate: Gate) -> None:
    gate.shut()
    grpc.start_request("tiny", "Hello", max_new_tokens=50, ignore_eos=True)
    async with opened(f"http://{gateway.http}/") as page:  # It leads there.
        await expect(page).to_have_url(f"http://{gateway.http}/console/")
        await expect(row(page, "e1")).to_contain_text("reachable")
        tile = page.locator(".tile").filter(has_text="Requests running")
        gate.let(3)
        await expect(tile.locator("dd")).to_have_text("1")
        assert await page.locator(".u-wrap canvas").count() == 4
        gate.open()
        await expect(tile.locator("dd")).to_have_text("0")


async def test_a_request_is_followed_and_stopped(gateway: HttpGateway, grpc: Client, gate: Gate) -> None:
    gate.shut()
    handle, _ = grpc.start_request("tiny", "Hello", max_new_tokens=1000, ignore_eos=True, request_id=HOSTILE)
    async with opened(at(gateway, "requests")) as page:
        mine = row(page, HOSTILE[:12])
        await expect(mine).to_contain_text("tiny")
        gate.let(5)
        wait_until(lambda: grpc.list_requests()[0].sequences[0].generated_length >= 3, "no tokens come")
        await expect(mine.get_by_role("cell").nth(6)).not_to_have_text("0")
        await mine.get_by_role("button", name="Stop").click()
        gate.open()
        await expect(mine).to_have_count(0)
        await page.get_by_label("Show those that have ended").check()
        await expect(mine).to_contain_text("finished")
        assert await page.locator("main img").count() == 0
        assert await page.title() == "Headrace console"
    grpc.release_request(handle)


async def test_a_chat_shows_its_tokens_and_alternatives(gateway: HttpGateway, client: openai.OpenAI) -> None:
    said: Any = [{"role": "user", "content": "Hello"}]
    wanted = client.chat.completions.create(model="tiny", messages=said, seed=7, max_tokens=12, temperature=0.7)
    async with opened(at(gateway, "playground")) as page:
        await expect(page.get_by_label("Model").locator("option")).to_have_count(1)
        for name, value in (("Seed", "7"), ("Most tokens", "12"), ("Temperature", "0.7")):
            await page.get_by_label(name).fill(value)
        await page.get_by_label("Message").fill("Hello")
        await page.get_by_label("Message").press("Enter")
        await expect(page.get_by_text("first after")).to_be_visible()
        texts = await page.locator(".turn").last.locator(".token:not(.end)").all_text_contents()
        assert "".join(texts).replace("\ufffd", "") in (wanted.choices[0].message.content or "").replace("\ufffd", "")
        await page.locator(".token").first.click()
        await expect(page.locator("#alternatives tbody tr")).not_to_have_count(0)
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("Enter")
        assert await page.locator(".token").nth(1).get_attribute("aria-expanded") == "true"
        await page.get_by_role("button", name="New chat").click()
        await expect(page.locator(".turn")).to_have_count(0)


async def test_an_answer_is_stopped(gateway: HttpGateway, grpc: Client, gate: Gate) -> None:
    gate.shut()
    async with opened(at(gateway, "playground")) as page:
        await expect(page.get_by_label("Model").locator("option")).to_have_count(1)
        await page.get_by_label("Message").fill("Hello")
        await page.get_by_role("button", name="Send").click()
        wait_until(lambda: len(grpc.list_requests()) == 1, "the request does not arrive")
        await page.get_by_role("button", name="Stop").click()
        wait_until(lambda: not grpc.list_requests(), "the request is not released")
        await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    gate.open()


async def test_a_model_is_installed_stopped_and_released(gateway: HttpGateway, tiny: Path) -> None:
    async with opened(at(gateway, "models")) as page:
        await page.get_by_label("Name", exact=True).fill("second")
        await page.get_by_label("Path on the engines").fill(str(tiny / "nothing"))
        await page.get_by_role("button", name="Install").click()
        await expect(page.get_by_role("alert")).to_contain_text(str(tiny / "nothing"))
        await page.get_by_label("More of its config").fill("[]")
        await page.get_by_role("button", name="Install").click()
        await expect(page.get_by_role("alert")).to_contain_text("must be a JSON object")
        await page.get_by_label("More of its config").fill('{"dtype": "COMPUTE_DTYPE_FLOAT32"}')
        await page.get_by_label("Path on the engines").fill(str(tiny))
        await page.get_by_label("Longest sequence").fill("64")
        await page.get_by_role("button", name="Install").click()
        mine = row(page, "second")
        await expect(mine).to_contain_text("running")
        await expect(page.get_by_role("alert")).to_be_hidden()
        await mine.get_by_role("button", name="Details").click()
        await expect(page.get_by_role("dialog")).to_contain_text('"maxLength": 64')
        await page.get_by_role("button", name="Close").click()
        await mine.get_by_role("button", name="Stop").click()
        await page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        await expect(mine).to_contain_text("stopped")
        await mine.get_by_role("button", name="Release").click()
        await page.get_by_role("dialog").get_by_role("button", name="Release").click()
        await expect(mine).to_have_count(0)


async def test_a_key_is_asked_for_and_used(engine: Server, tmp_path: Path) -> None:
    key, line = new_key("web")
    (tmp_path / "keys.toml").write_text(line)
    with http_gateway({"e1": engine.address}, "--keys", str(tmp_path / "keys.toml")) as gateway:
        async with opened(at(gateway, "models")) as page:
            await expect(page.get_by_role("dialog")).to_contain_text("API key")
            await page.get_by_label("Key", exact=True).fill(key)
            await page.get_by_role("button", name="Use").click()
            mine = row(page, "tiny")
            await expect(mine).to_contain_text("running")
            await expect(page.get_by_role("alert")).to_be_hidden()
            await mine.get_by_role("button", name="Stop").click()
            await page.get_by_role("dialog").get_by_role("button", name="Stop").click()
            await expect(page.get_by_role("alert")).to_contain_text("admin")
            await expect(mine).to_contain_text("running")


async def test_a_gateway_that_is_gone_is_named(engine: Server) -> None:
    with http_gateway({"e1": engine.address}) as gateway:
        async with opened(at(gateway, "overview")) as page:
            await expect(row(page, "e1")).to_contain_text("reachable")
            gateway.server.stop()
            await expect(page.get_by_role("alert")).to_contain_text("cannot be reached")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (400, "light")])
async def test_the_pages_are_accessible(gateway: HttpGateway, width: int, scheme: str) -> None:
    async with opened(at(gateway, "overview"), width, scheme) as page:
        for view in VIEWS:
            await page.goto(at(gateway, view))
            await expect(page.get_by_role("heading", level=1)).to_have_text(view.title())
            await expect(page.get_by_role("status")).to_contain_text("gateway")
            if view == "playground":
                await expect(page.get_by_label("Model").locator("option")).to_have_count(1)
                await page.get_by_label("Most tokens").fill("6")
                await page.get_by_label("Message").fill("Hello")
                await page.get_by_role("button", name="Send").click()
                await expect(page.get_by_text("first after")).to_be_visible()
                await page.locator(".token").first.press("Enter")  # a click needs a width, which a mark may not have
                await expect(page.get_by_text("Instead of")).to_be_visible()
            found: AxeResults = await Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_files_are_sealed_and_not_sent_twice(gateway: HttpGateway) -> None:
    status, headers, page = gateway.ask("GET", "/console/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<script>" not in page
    assert "script-src 'self'" in headers["content-security-policy"]
    assert gateway.ask("GET", "/console/", **{"if-none-match": headers["etag"]})[::2] == (304, b"")
    for path in ("/console/nothing.js", "/console/../app.py", "/console/%2e%2e/files.py", "/console//etc/passwd"):
        assert gateway.ask("GET", path)[0] == 404
