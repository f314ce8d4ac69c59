"""The site in headless Chromium, as wide as a phone, a laptop and a large screen, light and dark."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chromium import needs_chromium, running_chromium

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), needs_chromium]

WIDTHS = (400, 1280, 1700)
CUT = """() => {
  const width = document.documentElement.clientWidth, found = [];
  const scrolls = element => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  const scrolled = element => {
    for (let each = element.parentElement; each; each = each.parentElement)
      if (scrolls(each)) return true;
    return false;
  };
  if (document.documentElement.scrollWidth > width + 1) found.push("the page is wider than the screen");
  for (const element of document.querySelectorAll("article *")) {
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    if (!box.width || style.visibility === "hidden" || element.closest("svg, .headerlink, .copybtn")) continue;
    const name = element.tagName + ": " + element.textContent.trim().slice(0, 60);
    if (box.right > width + 1 && !scrolled(element)) found.push("beyond the screen: " + name);
    if (["hidden", "clip"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1)
      found.push("cut: " + name);
  }
  return found.slice(0, 5);
}"""
"""Names what a reader cannot see, not even by scrolling a table or a block of code."""
FIRST = {
    "timeout": ("options", "reliability", "errors", "writing-a-plugin"),
    "retry": ("reliability", "options", "writing-a-plugin", "errors"),
    "dead letter": ("calling-from-spark", "errors", "reliability"),
    "watermark": ("windows-on-streams", "process-table-functions-on-streams", "stream-with-windows"),
    "window": ("windows", "windows-on-streams", "stream-with-windows"),
}
"""What readers search for, and the pages of which one must be among the first three."""


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with running_chromium() as chromium:
        yield chromium


def test_nothing_on_a_page_is_cut(site: Path, browser):
    page, found = browser.new_page(), {}
    for path in sorted({*site.rglob("*.html")} - {site / "index.html"}):  # that one leads to the first page
        if "files" in path.relative_to(site).parts[:1]:
            continue
        page.goto(path.as_uri())
        for scheme, width in itertools.product(("light", "dark"), WIDTHS):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            if cut := page.evaluate(CUT):
                found[str(path.relative_to(site)), scheme, width] = cut
    page.close()
    assert found == {}


def test_a_page_is_dark_where_the_reader_wants_it(site: Path, browser):
    brightness = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        page.goto((site / "README.html").as_uri())
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness[scheme] = sum(int(part) for part in color.strip("rgba()").split(",")[:3])
        context.close()
    assert brightness["light"] > 600
    assert brightness["dark"] < 150


def test_the_first_screen_has_a_number_a_command_and_code_that_is_not_cut(site: Path, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((site / "README.html").as_uri())
    blocks = page.locator("article pre")
    last = next(index for index, text in enumerate(blocks.all_inner_texts()) if "connect(" in text)
    assert "pip install" in blocks.first.inner_text()
    assert page.evaluate("[...document.querySelectorAll('article strong')].some(e => /[0-9]/.test(e.textContent))")
    for index in range(last + 1):
        box = blocks.nth(index).bounding_box()
        assert box["y"] + box["height"] <= 800
        assert blocks.nth(index).evaluate("e => e.scrollWidth <= e.clientWidth")
    page.close()


@pytest.mark.parametrize("words", FIRST)
def test_search_finds_the_page_that_explains_a_word(site: Path, browser, words: str):
    page = browser.new_page()
    page.goto((site / "search.html").as_uri() + "?q=" + words.replace(" ", "+"))
    page.locator("ul.search li a").nth(2).wait_for(timeout=30_000)
    links = [link.get_attribute("href") for link in page.locator("ul.search > li > a").all()[:3]]
    page.close()
    names = [link.split("?")[0].split("#")[0].rsplit("/", 1)[-1].removesuffix(".html") for link in links]
    assert set(names) & set(FIRST[words]), names


def test_what_is_cut_is_found(browser, tmp_path: Path):
    """The check itself: it fails for a wide block that does not scroll."""
    wide = '<body><article><div style="{}"><p style="width:900px">wide</p></div></article></body>'
    context = browser.new_context(viewport={"width": 400, "height": 900})
    page, found = context.new_page(), []
    for style in ("", "overflow-x:hidden", "overflow-x:auto"):
        (tmp_path / "page.html").write_text(wide.format(style))
        page.goto((tmp_path / "page.html").as_uri())
        found.append(bool(page.evaluate(CUT)))
    context.close()
    assert found == [True, True, False]
