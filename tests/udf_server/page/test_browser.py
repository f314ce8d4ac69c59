"""The page in headless Chromium, as somebody sees it; makes the picture of the documentation when asked to.

UDF_PAGE_PICTURE=docs/images/page.png makes it.
"""

import os
import re
import threading

import pytest

import udf_server as udf
from spark_client.executor.stream.transport import transport_for
from tests.chromium import needs_chromium, running_chromium
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of

PICTURE = os.environ.get("UDF_PAGE_PICTURE")

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.slow, needs_chromium]


@udf.scalar(version="2")
async def geocode(address: str, limit: int = 1) -> list[float]:
    """Where an address is: latitude and longitude.

    Asks the geocoding service; an address it does not know fails with LookupError.
    """
    if address == "nowhere":
        raise LookupError("no such address: <b>nowhere</b>")
    return [52.5, 13.4]


@udf.scalar
def fahrenheit(number: int) -> float:
    """A temperature in the other scale."""
    if number % 50 == 0:
        raise ValueError("too round")
    return number * 9 / 5 + 32


@pytest.fixture(scope="module")
def browser():
    with running_chromium() as chromium:
        yield chromium


@pytest.fixture
def opened(browser):
    """Opens pages; whatever goes wrong in one fails the test."""
    contexts, problems = [], []

    def open_page(url, **settings):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}, **settings))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def test_somebody_looks_at_rates_and_tries_a_call(serve, opened):
    serving = serve(geocode, fahrenheit, try_calls=True)
    stop = threading.Event()

    def rows():
        call = call_of(fahrenheit, serving.target)
        stream = stream_of(call, transport_for(call.config))
        numbers = 0
        while not stop.wait(0.02):
            stream.submit(chunk_of(range(numbers, numbers + 40), numbers))
            everything(stream)
            numbers += 40
        stream.finish()

    job = threading.Thread(target=rows)
    job.start()
    try:
        page = opened(serving.server.metrics_url)
        assert page.title() == "udf-server"
        row = page.locator('tr[data-key="fahrenheit@1"]')
        rate = row.locator('[data-statistic="rate"]')
        rate.filter(has_text=re.compile("[1-9]")).wait_for(timeout=30_000)
        playwright.expect(row.locator("polyline")).to_be_attached(timeout=30_000)
        playwright.expect(row.locator('[data-statistic="errors"]')).to_contain_text(": ", timeout=30_000)
        assert row.locator('[data-statistic="errors"]').inner_text().startswith("FUNCTION_ERROR ")
        playwright.expect(page.locator("#state")).to_have_text("ready")

        form = page.locator('form[data-function="geocode@2"]')
        form.locator("input").first.fill("Unter den Linden 1")
        form.locator("button").click()
        playwright.expect(form.locator("output")).to_contain_text("[52.5,13.4]")
        if PICTURE:
            page.wait_for_timeout(20_000)
            page.screenshot(path=PICTURE, full_page=True)
        form.locator("input").first.fill("nowhere")
        form.locator("input").first.press("Enter")
        playwright.expect(form.locator("output")).to_have_class("bad")
        assert "FUNCTION_ERROR: LookupError: no such address: <b>nowhere</b>" in form.locator("output").inner_text()

        page.locator("#filter").fill("geo")
        assert page.locator("section:visible").count() == page.locator("tbody tr:visible").count() == 1
    finally:
        stop.set()
        job.join()


def test_the_page_fits_a_phone(serve, opened):
    page = opened(serve(geocode, fahrenheit, try_calls=True).server.metrics_url)
    for width in (400, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        wide = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth)"
        assert page.evaluate(f"{wide}.map(e => e.outerHTML)") == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#statistics thead").is_visible()


def test_without_scripts_the_catalogue_is_there(serve, opened):
    page = opened(serve(geocode, fahrenheit, try_calls=True).server.metrics_url, java_script_enabled=False)
    text = page.locator("main").inner_text()
    assert "geocode(address string, limit bigint = ...) -> array<double>" in text
    assert "udf-server call geocode@2" in text
    assert page.locator("form:visible, #filter:visible").count() == 0


def test_what_a_plugin_says_does_not_run(serve, opened):
    @udf.scalar(description="<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>")
    async def hostile(x: int) -> int:
        return x

    page = opened(serve(hostile).server.metrics_url)
    assert page.title() == "udf-server"
    assert "<script>document.title" in page.locator("section .description").inner_text()


def test_the_browser_asks_for_the_token(serve, opened, tmp_path):
    from udf_server.security.access import hashed, new_token

    token = new_token()
    path = tmp_path / "access.toml"
    path.write_text(f'[somebody]\ntoken_sha256 = "{hashed(token)}"\nfunctions = ["geo*"]\n')
    url = serve(geocode, fahrenheit, access_file=str(path), try_calls=True).server.metrics_url
    page = opened(url, http_credentials={"username": "me", "password": token})
    assert page.locator("section").count() == 1
    form = page.locator('form[data-function="geocode@2"]')
    form.locator("input").first.fill("x")
    form.locator("button").click()
    playwright.expect(form.locator("output")).to_contain_text("[52.5,13.4]")
