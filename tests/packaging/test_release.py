"""`make release`: what it refuses, and the files of a real one."""

import hashlib
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from deploy.release import NotReleasable, notes_of, release, version_of
from remote_udf.version import __version__
from tests.packaging.environments import ROOT

CHANGELOG = """# Changelog

## [0.2.0] - unreleased

### Added

- Something new.

## [0.1.0] - 2026-01-31

### Added

- A thing.

[0.1.0]: https://example.org/0.1.0
"""


def git(root: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *settings, *arguments], cwd=root, check=True, text=True, capture_output=True).stdout


@pytest.fixture
def checkout(tmp_path):
    """A committed checkout of a project of this shape, in version 0.1.0."""
    root = tmp_path / "checkout"
    (root / "proto/remote_udf").mkdir(parents=True)
    (root / "plugins/one").mkdir(parents=True)
    (root / "proto/remote_udf/version.py").write_text('__version__ = "0.1.0"\n')
    (root / "plugins/one/pyproject.toml").write_text('[project]\nname = "one"\nversion = "0.1.0"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "All")
    return root


def refused(root):
    """Why the checkout is not released. Nothing but git is run."""

    def run(*command: str) -> str:
        assert command[0] == "git", f"ran {command}"
        return git(root, *command[1:])

    with pytest.raises(NotReleasable) as raised:
        release(root, root.parent / "out", "test-all", run)
    return str(raised.value)


def test_the_notes_are_the_section_of_the_version():
    assert notes_of(CHANGELOG, "0.1.0") == "# remote-udf 0.1.0\n\n### Added\n\n- A thing.\n"


def test_a_version_without_a_date_or_section_is_refused():
    with pytest.raises(NotReleasable, match=re.escape("found '## [0.2.0] - unreleased'; expected '## [0.2.0] - YYYY")):
        notes_of(CHANGELOG, "0.2.0")
    with pytest.raises(NotReleasable, match=r"no section for version 0\.3\.0"):
        notes_of(CHANGELOG, "0.3.0")


def test_a_plugin_of_another_version_is_refused(checkout):
    (checkout / "plugins/one/pyproject.toml").write_text('[project]\nname = "one"\nversion = "0.0.9"\n')
    assert refused(checkout) == "plugins/one/pyproject.toml: expected version = '0.1.0', as the project has"


def test_changes_and_files_that_are_not_committed_are_refused(checkout):
    (checkout / "new.py").touch()
    assert refused(checkout) == "the checkout has changes; commit or remove them first:\n?? new.py"


def test_a_version_with_a_tag_is_refused(checkout):
    git(checkout, "tag", "v0.1.0")
    assert refused(checkout).startswith("the tag v0.1.0 exists")


def test_files_of_another_release_are_not_mixed_in(checkout):
    out = checkout.parent / "out"
    out.mkdir()
    (out / "remote_udf-0.0.9-py3-none-any.whl").touch()
    assert refused(checkout) == f"{out} has files; remove them first"


def test_plugins_of_this_project_have_its_version():
    assert version_of(ROOT) == __version__


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_release_has_packages_notes_a_bill_of_materials_and_checksums(tmp_path):
    root = tmp_path / "checkout"
    git(ROOT, "clone", "-q", "--no-tags", str(ROOT), str(root))  # it may be released already
    changelog = (root / "CHANGELOG.md").read_text()
    (root / "CHANGELOG.md").write_text(
        changelog.replace(f"[{__version__}] - unreleased", f"[{__version__}] - 2026-01-31")
    )
    git(root, "commit", "-qam", "Date the release", "--allow-empty")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))}
    done = subprocess.run(
        ["make", "-s", "release", "TEST="], cwd=root, env=environment, capture_output=True, text=True, timeout=580,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    dist = root / "dist"
    names = {path.name for path in dist.iterdir()}
    assert {f"remote_udf-{__version__}-py3-none-any.whl", f"remote_udf-{__version__}.tar.gz", "NOTES.md"} <= names
    plugins = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")}
    assert {f"{plugin}-{__version__}-py3-none-any.whl" for plugin in plugins} <= names
    sums = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.iterdir() if path.name != "SHA256SUMS"
    }
    bill = json.loads((dist / f"remote-udf-{__version__}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed = {component["name"] for component in bill["components"]}
    assert {"grpcio", "pyarrow", "pyspark", "redis", "opentelemetry-sdk"} <= listed
    assert not {"pip", "pytest"} & listed
    with tarfile.open(dist / f"remote_udf-{__version__}.tar.gz") as source:
        assert not [name for name in source.getnames() if "/.venv" in name or name.endswith(".pyc")]
