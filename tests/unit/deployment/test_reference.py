"""The reference of APIs is made of what there is, and names all of it."""

from __future__ import annotations

import importlib
import inspect
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urldefrag

import pytest
from reference import http_page, python_pages
from reference.__main__ import HTTP_PAGE

ROOT = Path(__file__).parents[3]
PDOC = "https://pdoc.dev"


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = set[str](), set[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attributes if value}
        self.anchors |= {found["id"]} if "id" in found else set()
        if "href" in found:
            (self.links if tag == "a" else self.loaded).add(found["href"])
        self.loaded |= {found["src"]} if "src" in found else set()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The pages of the Python client, by path."""
    folder = tmp_path_factory.mktemp("docs")
    python_pages.build(folder)
    return {str(file.relative_to(folder)): Page(file.read_text()) for file in folder.rglob("*.html")}


def test_the_page_of_http_is_committed() -> None:
    """After a change of a route or a body, `make docs`."""
    assert HTTP_PAGE.read_text() == http_page.page()


@pytest.mark.parametrize("page", ["http.md", "grpc.md", "README.md"])
def test_links_of_pages_lead_somewhere(page: str) -> None:
    file = ROOT / "docs" / "api" / page
    for link in re.findall(r"\]\(([^)]+)\)", file.read_text()):
        path, anchor = urldefrag(link)
        target = file if not path else (file.parent / path).resolve()
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^a-z0-9 _-]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("name", python_pages.modules())
def test_every_public_name_is_described(pages: dict[str, Page], name: str) -> None:
    page, module = pages[f"{name.replace('.', '/')}.html"], importlib.import_module(name)
    assert module.__doc__
    names = public_names(module)
    assert names
    for public in names:
        assert public in page.anchors
        described = getattr(module, public)
        if inspect.isclass(described):
            assert inspect.getdoc(described), public
            assert {f"{public}.{member}" for member in methods_of(described)} <= page.anchors


def public_names(module: ModuleType) -> list[str]:
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    return [name for name in names if not inspect.ismodule(getattr(module, name))]  # Modules have pages.


def methods_of(kind: type) -> list[str]:
    found = [
        name for name, value in inspect.getmembers(kind) if str(getattr(value, "__module__", "")) == kind.__module__
    ]
    return [name for name in found if not name.startswith("_") and callable(getattr(kind, name))]


def test_the_client_s_methods_are_described(pages: dict[str, Page]) -> None:
    methods = {"start_request", "generate", "install_model", "list_models", "embed", "close"}
    for client in ("Client", "AsyncClient"):
        assert {f"{client}.{method}" for method in methods} <= pages["headrace.html"].anchors


def test_pages_link_to_one_another_and_need_no_network(pages: dict[str, Page]) -> None:
    for path, page in pages.items():
        loaded = {one for one in page.loaded if not one.startswith("data:")}
        for link in (page.links | loaded) - {PDOC}:
            target, anchor = urldefrag(link)
            assert not re.match(r"\w+:", target), link
            found = str((Path("/") / path).parent.joinpath(target).resolve().relative_to("/")) if target else path
            if found.endswith(".html") and anchor:
                assert unquote(anchor) in pages[found].anchors, link
            assert found in pages or found.endswith(".js")
