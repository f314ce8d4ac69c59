"""`python -m deploy.release`: makes the files of a release in `dist/`, from a clean checkout whose tests pass.

It needs the packages of the extra `release`, which `make release` installs into an environment of its own.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["EXTRAS", "NotReleasable", "notes_of", "release", "version_of"]

EXTRAS = "server,spark,cache,tracing"
"""What the bill of materials covers."""
NOTES, SUMS = "NOTES.md", "SHA256SUMS"


class NotReleasable(Exception):
    """The checkout cannot be released. The message says what to do."""


def version_of(root: Path) -> str:
    """The version of the project. Raises NotReleasable if a plugin has another one."""
    match = re.search(r'^__version__ = "(.+)"$', (root / "proto/remote_udf/version.py").read_text(), re.MULTILINE)
    if match is None:
        raise NotReleasable("proto/remote_udf/version.py: no __version__ found")
    for project in sorted(root.glob("plugins/*/pyproject.toml")):
        if f'\nversion = "{match[1]}"\n' not in project.read_text():
            raise NotReleasable(f"{project.relative_to(root)}: expected version = {match[1]!r}, as the project has")
    return match[1]


def notes_of(changelog: str, version: str) -> str:
    """The section of the changelog for a version. Raises NotReleasable if there is none, or if it has no date."""
    sections = re.split(r"^(?=## \[)", changelog, flags=re.MULTILINE)
    for section in sections:
        if section.startswith(f"## [{version}]"):
            head, _, text = section.partition("\n")
            if not re.fullmatch(rf"## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", head.strip()):
                raise NotReleasable(f"CHANGELOG.md: found {head.strip()!r}; expected '## [{version}] - YYYY-MM-DD'")
            without_links = re.split(r"^\[[^]]+\]: ", text, flags=re.MULTILINE)[0]
            return f"# remote-udf {version}\n\n{without_links.strip()}\n"
    raise NotReleasable(f"CHANGELOG.md: no section for version {version}; expected '## [{version}] - YYYY-MM-DD'")


def release(root: Path, out: Path, test: str, run: Callable[..., str]) -> list[Path]:
    """Make the files of the release, after the checks.

    Args:
        root: The checkout.
        out: The folder for the files. It must be empty or absent.
        test: The target of make that tests the checkout; empty for none, if this commit was tested.
        run: Runs a command in the checkout and returns its output. It raises an exception if the command fails.

    Returns:
        The files.

    Raises:
        NotReleasable: The checkout has changes, its version is not dated or released already, or `out` has files.
    """
    version = version_of(root)
    notes = notes_of((root / "CHANGELOG.md").read_text(), version)
    if changes := run("git", "status", "--porcelain").strip():
        raise NotReleasable(f"the checkout has changes; commit or remove them first:\n{changes}")
    if run("git", "tag", "--list", f"v{version}").strip():
        raise NotReleasable(f"the tag v{version} exists; raise the version in proto/remote_udf/version.py")
    if out.exists() and any(out.iterdir()):
        raise NotReleasable(f"{out} has files; remove them first")
    if test:
        run("make", "-s", "check", f"TEST={test}")
    projects = [".", *(str(path.parent.relative_to(root)) for path in sorted(root.glob("plugins/*/pyproject.toml")))]
    for project in projects:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), project)
    run(sys.executable, "-m", "twine", "check", "--strict", *(str(path) for path in sorted(out.iterdir())))
    (wheel,) = out.glob("remote_udf-*.whl")
    _bill_of_materials(root, wheel, out / f"remote-udf-{version}.cdx.json", run)
    (out / NOTES).write_text(notes)
    files = sorted(out.iterdir())
    (out / SUMS).write_text(
        "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    )
    return [*files, out / SUMS]


def _bill_of_materials(root: Path, wheel: Path, target: Path, run: Callable[..., str]) -> None:
    """Install the wheel with its extras into an empty environment, and list what is there as CycloneDX."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False)
        python = str(Path(folder) / "bin/python")
        pip = (sys.executable, "-m", "pip", "--python", python)
        run(*pip, "install", "-q", "--no-compile", "-c", "constraints.txt", f"{wheel}[{EXTRAS}]")
        run(*pip, "check")
        run(
            sys.executable, "-m", "cyclonedx_py", "environment", python, "--pyproject", str(root / "pyproject.toml"),
            "--mc-type", "library", "--output-reproducible", "-o", str(target),
        )  # fmt: skip


def _run(root: Path) -> Callable[..., str]:
    def run(*command: str) -> str:
        _tell(" ".join(("+", *command)))
        shown = None if command[0] != "git" else subprocess.PIPE
        done = subprocess.run(command, cwd=root, check=True, text=True, stdout=shown)  # noqa: S603 - ours
        return done.stdout or ""

    return run


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("--test", default="test-all", help="target of make that tests the checkout; '' if it is tested")
    parser.add_argument("--out", default="dist", type=Path, help="folder for the files (default: dist)")
    given = parser.parse_args(arguments)
    root = Path(__file__).parents[1]
    try:
        files = release(root, root / given.out, given.test, _run(root))
    except (NotReleasable, subprocess.CalledProcessError) as error:
        raise SystemExit(f"not released: {error}") from None
    _tell("\n".join(path.name for path in files))
    version = version_of(root)
    _tell(f"next: git tag -s v{version} && git push origin v{version}; upload the files with twine")


if __name__ == "__main__":
    main()
