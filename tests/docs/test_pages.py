"""Every snippet of the README and of docs/ runs, and prints the output on the page."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import set_back
from tests.docs.pages import NOT_RUN, PAGES, ROOT, Page, languages, not_run, python_of

PICTURES = {"mermaid"}
USES_SPARK = {page for page in PAGES if re.search(r"\bconnect\(spark", page.read_text())}


def named(pages: set[Path]) -> pytest.MarkDecorator:
    ordered = sorted(pages)
    return pytest.mark.parametrize("page", ordered, ids=[str(page.relative_to(ROOT)) for page in ordered])


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Changes to an empty directory. Afterwards removes modules imported from there, and restores the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    variables = dict(os.environ)
    yield tmp_path
    os.environ.clear()
    os.environ.update(variables)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def settings(spark) -> Iterator[None]:
    """Restores the session settings that a page changes."""
    before = dict(spark.conf.getAll)
    yield
    set_back(spark, before)


@named(USES_SPARK)
@pytest.mark.usefixtures("settings")
def test_a_page_with_spark_does_what_it_says(page: Path, directory: Path):
    assert Page(page, directory).run() > 0


@pytest.mark.long
@named({page for page in PAGES if languages(page) - NOT_RUN - PICTURES} - USES_SPARK)
def test_a_page_of_commands_does_what_it_says(page: Path, directory: Path):
    assert Page(page, directory).run() > 0


@named(set(PAGES))
def test_every_block_says_what_it_is(page: Path):
    assert languages(page) <= {"python", "toml", "text", "console"} | NOT_RUN | PICTURES


def test_a_page_says_what_is_not_run():
    reasons = [reason for page in PAGES for reason in not_run(page)]
    assert len(reasons) == 26
    assert all(reasons)


@named(set(PAGES))
def test_python_of_a_page_uses_only_names_that_it_creates(page: Path):
    undefined = ["ruff", "check", "--isolated", "--quiet", "--select", "F821", "--output-format", "concise", "-"]
    found = subprocess.run(
        [sys.executable, "-m", *undefined], input=python_of(page), text=True, capture_output=True, check=False
    )
    assert (found.stdout, found.stderr) == ("", "")


@named({*PAGES, *ROOT.glob("*.md")})
def test_links_lead_to_files_that_exist(page: Path):
    links = re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)", page.read_text())
    for file, heading in links:
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), file
        if heading:
            titles = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_a_page_that_prints_something_else_fails(directory: Path):
    wrong = directory / "wrong.md"
    wrong.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match=r"wrong\.md, line 5"):
        Page(wrong, directory).run()


def test_commands_of_a_page_share_a_shell_and_python_starts_without_names(directory: Path):
    page = directory / "page.md"
    page.write_text(
        "```console\n$ mkdir a && cd a\n$ export B=c\n```\n\n```console\n$ basename $PWD; echo $B\na\nc\n```\n"
    )
    assert Page(page, directory).run() == 2
    page.write_text("```python\nspark.range(1)\n```\n")
    with pytest.raises(NameError, match="spark"):
        Page(page, directory).run()


def test_a_command_that_ends_its_shell_fails(directory: Path):
    page = directory / "page.md"
    page.write_text("```console\n$ exit 3\n```\n")
    with pytest.raises(EOFError, match="exit 3 ended the shell"):
        Page(page, directory).run()


def test_two_servers_with_a_port_in_common_fail(directory: Path):
    (directory / "one_udfs.py").write_text(
        "import udf_server as udf\n\n@udf.scalar\nasync def one() -> int:\n    return 1\n"
    )
    page = directory / "page.md"
    first = '```console\n$ udf-server serve --plugin one_udfs.py\n{"target": ..., "pid": 4242...}\n```\n'
    second = '```console\n$ udf-server serve --plugin one_udfs.py --unix-socket a.sock\n{"target": ...}\n```\n'
    page.write_text(first + "```console\n$ kill 4242\n```\n" + second)
    assert Page(page, directory).run() == 3
    page.write_text(first + second)
    with pytest.raises(AssertionError, match="port 9464 is that of a server which the page has not stopped"):
        Page(page, directory).run()


def test_a_command_that_prints_something_else_fails(directory: Path):
    wrong = directory / "wrong.md"
    wrong.write_text("```console\n$ echo one\none\n$ echo two\nthree\n```\n")
    with pytest.raises(AssertionError, match="echo two"):
        Page(wrong, directory).run()


def test_the_index_and_the_menu_of_the_site_have_the_same_groups_of_few_pages():
    menu = {
        subtree["caption"]: [entry["file"] for entry in subtree["entries"] if entry["file"] != "docs/README"]
        for subtree in yaml.safe_load((ROOT / "docs/site/toc.yml").read_text())["subtrees"]
    }
    index = {}
    for part in re.split(r"^## ", (ROOT / "docs/README.md").read_text(), flags=re.MULTILINE)[1:]:
        pages = re.findall(r"^\| \[.*?\]\((.*?)\.md\)", part, re.MULTILINE)
        index[part.splitlines()[0]] = [str((ROOT / "docs" / page).resolve().relative_to(ROOT)) for page in pages]
    assert menu == index
    assert max(map(len, menu.values())) <= 8
