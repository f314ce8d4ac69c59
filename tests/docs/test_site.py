"""The site of `make site`: complete, without a dead link, and without a request to another host."""

import importlib
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.util.inventory import InventoryFile

from tests.docs.pages import ROOT

pytestmark = pytest.mark.long

PUBLIC = [
    "remote_udf", "remote_udf.effective_options", "remote_udf.errors", "remote_udf.functions", "remote_udf.options",
    "remote_udf.types", "spark_client", "spark_client.base.errors", "spark_client.testing", "spark_client.windows",
    "udf_server", "udf_server.base.errors", "udf_server.retry_after", "udf_server.settings",
    "udf_server.testing",
]  # fmt: skip
"""What users import."""
INNER = {
    "DEFAULT_CAPACITY", "ErrorPolicy", "StreamOptions", "TIMESTAMP", "TIMESTAMP_NTZ", "TRACEBACK_LIMIT", "VALUE",
    "capped", "resolve", "split_name", "version_key",
}  # fmt: skip
"""Names that only the two ends import from there."""
LOADED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
}
"""Elements that make a browser ask for something, and where they say for what."""


class Reading(HTMLParser):
    """The targets of a page's links, the resources that it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if LOADED.get(tag) in found:
            self.loaded.append(found[LOADED[tag]])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Reading]:
    return {path: Reading(path.read_text()) for path in site.rglob("*.html")}


@pytest.mark.timeout(360)
def test_sphinx_finds_nothing_to_warn_of(made: tuple[Path, str]):
    """Sphinx warns of a page that is not in the navigation, a dead link, or a picture that is not Mermaid."""
    assert made[1] == ""


@pytest.mark.timeout(360)
def test_every_page_is_built_and_found_from_the_first(site: Path, pages: dict[Path, Reading]):
    assert "url=README.html" in (site / "index.html").read_text()
    known, waiting = {site / "index.html"}, [site / "README.html"]
    while waiting:
        page = waiting.pop()
        if page in pages and page not in known:
            known.add(page)
            waiting += [_target(page, link)[0] for link in pages[page].links]
    assert known | {site / "search.html"} == set(pages)
    sources = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "plugins").glob("*/README.md")]
    assert {site / path.relative_to(ROOT).with_suffix(".html") for path in sources} <= known


def test_links_between_pages_lead_to_a_page_and_a_place_on_it(pages: dict[Path, Reading]):
    dead = []
    for page, reading in pages.items():
        for link in reading.links:
            if urlsplit(link).scheme not in ("http", "https"):
                there, anchor = _target(page, link)
                if not there.is_file() or (anchor and anchor not in pages[there].anchors):
                    dead.append((page.name, link))
    assert dead == []


def test_a_page_has_a_link_to_edit_it(site: Path, pages: dict[Path, Reading]):
    assert "https://code.example/edit/main/docs/sql.md" in pages[site / "docs" / "sql.html"].links
    assert "https://code.example/edit/main/README.md" in pages[site / "README.html"].links


def test_looking_at_a_page_asks_no_other_host(site: Path, pages: dict[Path, Reading]):
    loaded = {(page.name, address) for page, reading in pages.items() for address in reading.loaded}
    assert [each for each in loaded if urlsplit(each[1]).netloc] == []
    assert [each for each in loaded if not each[1]] == []
    sheets = [*site.rglob("*.css"), *site.rglob("*.svg")]
    assert len(sheets) > 10
    assert [
        sheet.name for sheet in sheets if re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text())
    ] == []


def test_pictures_are_drawn_when_the_site_is_made(site: Path):
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        wanted = len(re.findall("^```mermaid$", path.read_text(), re.MULTILINE))
        page = (site / path.relative_to(ROOT)).with_suffix(".html")
        drawn = re.findall(r'<object data="([^"]+\.svg)"', page.read_text())
        assert len(drawn) == wanted
        assert all("aria-roledescription" in (page.parent / picture).read_text() for picture in drawn)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(site: Path, module: str):
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    public = importlib.import_module(module)
    for name in set(public.__all__) - INNER:
        home = getattr(getattr(public, name), "__module__", module)
        assert {f"{module}.{name}", f"{home}.{name}"} & known, name


def test_the_reference_shows_nothing_of_the_machine_that_makes_it(site: Path):
    for page in (site / "docs/reference").glob("*.html"):
        text = page.read_text()
        assert os.environ["PATH"] not in text
        assert str(ROOT) not in text
        assert not re.search(r" at 0x[0-9a-f]{6}", text)


def test_a_link_to_a_file_of_the_repository_shows_its_text(site: Path):
    assert "<h1><code>LICENSE</code></h1>" in (site / "files/LICENSE.html").read_text()
    assert "Apache License" in (site / "files/LICENSE.html").read_text()
    listing = (site / "files/deploy.html").read_text()
    assert 'href="deploy/container.html"' in listing
    assert "FROM" in (site / "files/deploy/container/Dockerfile.html").read_text()


def test_the_pages_that_the_search_knows_exist():
    pages = re.findall(r'^  "([^"]+)": \[', (ROOT / "docs/site/search.js").read_text(), re.MULTILINE)
    assert len(pages) > 10
    assert [page for page in pages if not (ROOT / f"{page}.md").is_file()] == []


def test_a_docstring_in_markdown_becomes_restructured_text(translated: Callable[[str], str]):
    assert translated("Raises PlanError. See `sql` and `a b`s; not NumPy.") == (
        "Raises :py:obj:`.PlanError`. See :py:obj:`sql` and ``a b``\\ s; not NumPy."
    )
    assert translated("Use:\n\n```python\nf(`x`)\n```\n\nDone.") == (
        "Use:\n\n\n.. code-block:: python\n\n   f(`x`)\n\n\nDone."
    )
    assert translated("Tree:\n\n    root\n    ├── leaf\n\nDone.").split() == [
        "Tree:", "..", "code-block::", "text", "root", "├──", "leaf", "Done.",
    ]  # fmt: skip


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.syspath_prepend(ROOT / "docs/site")
    docstrings = importlib.import_module("docstrings")

    def translate(text: str) -> str:
        lines = text.split("\n")
        docstrings.translate(SimpleNamespace(), "class", "x", None, None, lines)
        return "\n".join(lines)

    return translate


def _target(page: Path, link: str) -> tuple[Path, str]:
    parts = urlsplit(link)
    there = page if not parts.path else Path(page.parent, unquote(parts.path)).resolve()
    return (page if parts.scheme or parts.netloc else there), unquote(parts.fragment)
