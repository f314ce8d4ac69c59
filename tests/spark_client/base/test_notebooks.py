"""The display of sessions, functions, summaries and explanations in a notebook; draws the documentation's picture.

UDF_NOTEBOOK_PICTURE=docs/images/notebook.png makes it.
"""

import os
import re
from html.parser import HTMLParser

import pyarrow as pa
import pytest

from remote_udf.functions import FunctionKind, FunctionSpec, Parameter
from spark_client.base.config import ClientConfig
from spark_client.base.notebooks import Explanation, FunctionList, bar
from spark_client.base.security import Security
from spark_client.base.statistics import Statistics, TaskReport
from spark_client.functions.aggregate import RemoteAggregate
from spark_client.functions.directory import Functions
from spark_client.functions.scalar import RemoteFunction
from spark_client.session import RemoteSession
from spark_client.summary.collector import Collector
from spark_client.summary.job_summary import JobSummary
from tests.chromium import needs_chromium, running_chromium

PICTURE = os.environ.get("UDF_NOTEBOOK_PICTURE")
CONFIG = ClientConfig("udf.example:50051", security=Security(ca_file="/etc/ca.pem", token_variable="UDF_TOKEN"))
GEOCODE = FunctionSpec(
    "geocode", "2", FunctionKind.SCALAR,
    (Parameter("address", pa.string()), Parameter("limit", pa.int64())),
    pa.list_(pa.float64()), 1, owner="Geo team <geo@acme.example>",
    description="Where an address is: latitude and longitude.\n\nAn address it does not know fails with LookupError.",
)  # fmt: skip
SPREAD = FunctionSpec(
    "spread", "1", FunctionKind.AGGREGATE, (Parameter("price", pa.float64()),), pa.float64(), 1,
    description="Highest <less> lowest.", accumulator=pa.list_(pa.float64()), supports_merging=True,
)  # fmt: skip
EVIL = '<script>alert("x")</script>'


class Page(HTMLParser):
    """Checks that tags are balanced and none runs anything; keeps the text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text = [], ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag not in {"script", "link", "img", "iframe", "style"}
        assert {name for name, _ in attributes} <= {"style"}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data} "


def session(config=CONFIG, functions=(GEOCODE, SPREAD)):
    return RemoteSession(None, config, Functions(functions))


def summary():
    made = JobSummary(None, None, Collector())
    statistics = Statistics(
        streams=1, rows=12_345, ok=12_300, failed=45, retries=17, task_seconds=8.0, spark_seconds=1.0,
        waiting_seconds=7.0, queue_seconds=2.0, function_seconds=9.0,
    )  # fmt: skip
    for _ in range(6):
        statistics.answered(2.1)
    with made:
        made.take(TaskReport("geocode@2", "o", "null", 4, 0, 1, -1, statistics))
        made.take(TaskReport("spread@1", "p", "fail", 5, 0, 1, -1, Statistics(rows=40, ok=40, task_seconds=0.2)))
    return made


STAGES = "1. geocode@2: a scalar function on the server\n2. spread@1: merged <on> it"
EXPLAINED = Explanation(f"{STAGES}\n\n== Plan ==\nScan\n")


def everything():
    return {
        "remote": session(),
        "remote.functions()": session().functions(),
        'remote.function("geocode", timeout="2 s")': RemoteFunction(GEOCODE, None, CONFIG, {"timeout": "2 s"}),
        "summary": summary(),
        'remote.explain("SELECT ...")': EXPLAINED,
    }


@pytest.mark.parametrize("name", everything())
def test_what_notebooks_show_runs_nothing_and_is_whole(name):
    assert Page(everything()[name]._repr_html_()).text


def test_what_comes_from_plugins_is_escaped():
    spec = FunctionSpec(
        "f", "1", FunctionKind.SCALAR, (Parameter("x", pa.struct([pa.field(EVIL, pa.string())])),), pa.string(), 1,
        description=EVIL, owner=EVIL,
    )  # fmt: skip
    report = TaskReport(EVIL, "o", EVIL, 1, 0, 1, -1, Statistics(rows=1, failed=1))
    made = JobSummary(None, None, Collector())
    made.take(report)
    for shown in (
        FunctionList([spec]), session(functions=[spec]), RemoteFunction(spec, None, CONFIG, {"timeout": EVIL}),
        RemoteAggregate(spec, None, CONFIG), made, Explanation(f"1. {EVIL}\n\n{EVIL}"),
    ):  # fmt: skip
        assert EVIL in Page(shown._repr_html_()).text


def test_colours_leave_those_of_the_notebook_as_they_are():
    for shown in everything().values():
        styles = re.findall(r'style="([^"]*)"', shown._repr_html_())
        assert styles
        # A background only where it is the content, and no colour of text but that of a legend's square.
        for style in styles:
            assert "background" not in style or "display:inline-block" in style
            assert not re.search(r"(^|;)color:(?!inherit$|#[0-9a-f]{6}$)", style)


def test_a_session_says_how_it_is_connected_and_no_secret(monkeypatch):
    monkeypatch.setenv("UDF_TOKEN", "s3cr3t")
    page = Page(session()._repr_html_())
    assert "server:  udf.example:50051" in page.text
    assert "connection:  TLS, token" in page.text
    assert repr(session()) == "<remote session with udf.example:50051 (TLS, token), 2 functions>"
    open_one = session(ClientConfig("localhost:1"), [GEOCODE])
    assert "no TLS" in repr(open_one)
    assert "1 function " in Page(open_one._repr_html_()).text


@pytest.mark.parametrize("kind", [RemoteFunction, RemoteAggregate])
def test_no_form_of_anything_has_a_token_or_a_password(kind, monkeypatch):
    monkeypatch.setenv("UDF_TOKEN", "s3cr3t")
    function = kind(GEOCODE, None, CONFIG, {"dead_letter": "s3://key:s3cr3t@bucket/x", "timeout": "2 s"})
    shown = [function, session(), session().functions(), function.config]
    for each in shown:
        assert "s3cr3t" not in repr(each)
        assert "s3cr3t" not in getattr(each, "_repr_html_", str)()
    assert "dead_letter=s3://...@bucket/x, timeout=2 s" in Page(function._repr_html_()).text


def test_a_function_shows_signature_description_version_server_and_owner():
    function = RemoteFunction(GEOCODE, None, CONFIG)
    text = Page(function._repr_html_()).text
    for part in (
        GEOCODE.signature, GEOCODE.description, "version:  2", "server:  udf.example:50051",
        "owner:  Geo team <geo@acme.example>",
    ):  # fmt: skip
        assert part in text
    assert "options:" not in text
    assert repr(function) == f"<remote function {GEOCODE.signature}, version 2, of udf.example:50051>"


def test_the_list_of_functions_is_a_list_with_a_line_for_each(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    functions = session().functions()
    assert [spec.key for spec in functions] == ["geocode@2", "spread@1"]
    assert repr(functions).splitlines() == [
        f"geocode@2  scalar     {GEOCODE.signature}",
        "spread@1   aggregate  spread(price double) -> double",
    ]
    assert "Highest <less> lowest." in Page(functions._repr_html_()).text
    assert "owner" not in Page(FunctionList([SPREAD])._repr_html_()).text
    assert repr(FunctionList()) == "no functions"


def test_a_long_list_of_functions_is_as_wide_as_the_terminal_and_shown_in_parts(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    functions = FunctionList([SPREAD] * 70)
    lines = repr(functions).splitlines()
    assert lines[:50] == ["spread@1  aggregate  spread(price dou..."] * 50
    assert lines[50:] == ["... and 20 more: functions[50:]"]
    assert repr(functions[50:]).count("\n") == 19
    assert functions[0] == SPREAD


def test_an_explanation_is_text_whose_stages_come_before_the_folded_plan():
    assert EXPLAINED.startswith("1. geocode@2") and repr(EXPLAINED) == str(EXPLAINED)
    html = EXPLAINED._repr_html_()
    assert html.index("a scalar function on the server") < html.index("<details>") < html.index("== Plan ==")
    assert "<li>spread@1: merged &lt;on&gt; it</li>" in html


def test_a_summary_has_bars_of_outcomes_and_times():
    text = Page(summary()._repr_html_()).text
    for part in ("12,345", "ok &gt;99%", "failed (null) &lt;1%", "Spark 12%", "waiting 88%", "function 71%", "ok 100%"):
        assert part.replace("&gt;", ">").replace("&lt;", "<") in re.sub(r"\s+", " ", text)


def test_a_bar_is_as_wide_as_its_shares_together_and_leaves_out_what_is_nothing():
    html = bar({"a": (1, "#111111"), "b": (3, "#222222"), "c": (0, "#333333")})
    assert re.findall(r"width:([\d.]+)%", html) == ["25.00", "75.00"]
    assert "#333333" not in html
    assert bar({"a": (0, "#111111")}) == ""


@pytest.mark.slow
@needs_chromium
def test_it_can_be_read_on_white_and_on_black(tmp_path):
    cells = "".join(
        f"<p><code>{name}</code></p>{shown._repr_html_().replace('<details>', '<details open>')}<hr>"
        for name, shown in everything().items()
    )
    theme = "<section style='color:{};background:{};padding:1rem'>" + cells + "</section>"
    style = "body{margin:0;font:14px sans-serif} td,th{padding:.3em .6em}"
    (tmp_path / "notebook.html").write_text(
        f"<!doctype html><meta charset='utf-8'><style>{style}</style>"
        f"{theme.format('#111', '#fff')}{theme.format('#ddd', '#111')}"
    )
    with running_chromium() as chromium:
        page = chromium.new_page(viewport={"width": 1100, "height": 900})
        page.goto((tmp_path / "notebook.html").as_uri())
        if PICTURE:
            page.screenshot(path=PICTURE, full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1100
        widths = page.eval_on_selector_all("span[style*='inline-block']", "boxes => boxes.map(box => box.offsetWidth)")
    assert len(widths) > 6 and all(width >= 0 for width in widths) and max(widths) > 100
