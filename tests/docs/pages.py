"""Runs a page of the documentation as a reader would: in an empty directory, from its first block to its last.

A `python` block is executed; if it begins with a file's name in a comment, it is written to that file instead, and so
is a `toml` block. A `text` block is the output of the previous block. In a `console` block lines with `$` are commands,
which continue after a backslash at the end of a line, and the other lines are their output; all commands of a page
run in one shell. `...` matches anything. A server that a page starts gets free ports instead of those it names, which
must not be those of another one, and runs until `kill` with the pid that the page shows, or until the page ends.
`pip install` of a folder behaves like `pip install -e`: into the page's own directory, for its commands alone, and the
server then finds only the plugins that the page installed.
A block that is not run has a comment before it, `<!-- not run: the reason -->`.
"""

import contextlib
import doctest
import importlib.metadata
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sybil import Document, Example
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

from tests.docs.shell import Shell

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/tutorials").glob("*.md"))]
NOT_RUN = {"bash", "dockerfile", "py", "scala", "sql"}
"""Commands that set up or run the whole project, what tests/deploy builds, grammars, and other people's code."""
FILE_NAME = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")
ADDRESS = re.compile(r"\b(?:localhost|127\.0\.0\.1):(\d+)")
OUTPUT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Page:
    """One run of one page. Its Python starts without any name."""

    def __init__(self, path: Path, directory: Path) -> None:
        evaluators = {"python": self.python, "toml": self.file, "text": self.text, "console": self.console}
        parsers = [CodeBlockParser(language, evaluator) for language, evaluator in evaluators.items()]
        self._document = Document.parse(str(path), *parsers)
        self._directory = directory
        self._shell = Shell(directory, _alone())
        self._python = PythonEvaluator()
        self._printed = ""
        self._servers: list[subprocess.Popen[str]] = []
        self._ports: dict[str, str] = {}
        """By the port that the page names, the one in its place; likewise below."""
        self._held: dict[int, set[str]] = {}
        """The ports that the page names for a server, by its pid."""
        self._pids: dict[str, int] = {}
        self._installed: list[Path] = []

    def run(self) -> int:
        """Returns the number of executed blocks. Raises the page's errors; SybilFailure for other output."""
        blocks = 0
        try:
            for example in self._document.examples():
                example.evaluate()
                blocks += 1
        finally:
            self._shell.close()
            for server in self._servers:
                with server:
                    server.terminate()
        return blocks

    def python(self, example: Example) -> str | None:
        example.parsed = type(example.parsed)(
            self._addressed(example.parsed), example.parsed.offset, example.parsed.line_offset
        )
        if FILE_NAME.match(example.parsed):
            return self.file(example)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self._python(example)
        self._printed = printed.getvalue()
        return None

    def file(self, example: Example) -> str | None:
        name = FILE_NAME.match(example.parsed)
        if name is None:
            return "a block of this kind begins with a comment that names its file"
        path = self._directory / name[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example.parsed)
        return None

    def text(self, example: Example) -> str | None:
        return _difference(example.parsed, self._printed)

    def console(self, example: Example) -> str | None:
        for command, wanted in _commands(example.parsed):
            if command.startswith(("udf-server serve", "udf-server dev")) and wanted.startswith("{"):
                if (taken := self._taken(command)) is not None:
                    return taken
                printed = self._serve(command, wanted)
            elif command.startswith("kill "):
                printed = ""
                pid = self._pids[command.split()[-1]]
                os.kill(pid, signal.SIGTERM)
                next(server for server in self._servers if server.pid == pid).wait(60)
            elif command.startswith("udf-server reload"):
                printed = self._shell.run(f"{command} --metrics-port {self._ports['9464']}")
            elif command.startswith("pip install "):
                printed = ""
                self._install(command)
            else:
                printed = self._shell.run(self._addressed(command))
            difference = _difference(wanted, printed)
            if difference is not None:
                return f"{command}\n{difference}"
        return None

    def _taken(self, command: str) -> str | None:
        """Why a reader's server would not start: it gets the ports that the page names."""
        running = [held for server in self._servers if server.poll() is None for held in self._held[server.pid]]
        taken = sorted(_named(command).intersection(running))
        return f"{command}\nport {taken[0]} is that of a server which the page has not stopped" if taken else None

    def _serve(self, command: str, wanted: str) -> str:
        variables = self._shell.variables()
        if '"devices"' in wanted:
            del variables["UDF_CONFIG_PROCESSES"]  # the number of processes follows from the devices
        server = subprocess.Popen(
            f"exec {command} --port 0 --metrics-port 0 --log-level error", shell=True,
            cwd=self._shell.directory(), env=variables, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._servers.append(server)
        self._held[server.pid] = _named(command)
        assert server.stdout is not None
        line = server.stdout.readline()
        ready = json.loads(line)
        for name, default, address in (("port", "50051", ready["target"]), ("metrics-port", "9464", ready["metrics"])):
            if not address.startswith("unix:"):
                port = _option(command, name, default)
                self._ports[port] = address.rpartition(":")[2]
                line = line.replace(address.removeprefix("http://"), f"127.0.0.1:{port}")
        for pid in re.findall(r'"pid": (\d+)', wanted):
            self._pids[pid] = ready["pid"]
            line = line.replace(f'"pid": {ready["pid"]}', f'"pid": {pid}')
        return line

    def _install(self, command: str) -> None:
        project = self._shell.directory() / re.sub(r"\[.*", "", shlex.split(command)[-1])
        self._installed.append(project)
        install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "--upgrade"]
        subprocess.run(
            [sys.executable, *install, "--target", str(self._directory / "site"), str(project)],
            check=True, timeout=60, capture_output=True,
        )  # fmt: skip
        # Folders precede built packages, as in an editable install.
        modules = os.pathsep.join(map(str, [*self._installed, self._directory / "site"]))
        others = ",".join({point.name for point in importlib.metadata.entry_points(group="udf_server")})
        self._shell.run(
            f"unset UDF_CONFIG_ENTRY_POINTS; export PYTHONPATH={shlex.quote(modules)} "
            f"UDF_CONFIG_BLOCK={shlex.quote(others)}"
        )

    def _addressed(self, source: str) -> str:
        return ADDRESS.sub(
            lambda found: f"127.0.0.1:{self._ports[found[1]]}" if found[1] in self._ports else found[0], source
        )


def _alone() -> dict[str, str]:
    """The environment of a page's commands. It hides packages that are installed beside the project."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "UDF_CONFIG_ENTRY_POINTS": "false"}


def languages(path: Path) -> set[str]:
    """Returns the languages of the page's fenced blocks; an empty text for a block without one."""
    return set(re.findall(r"^ *```(\S*)[^\n]*\n.*?^ *```$", path.read_text(), re.MULTILINE | re.DOTALL))


def python_of(path: Path) -> str:
    """Returns the Python of a page that is executed, without the files that it writes."""
    blocks = re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    return "\n".join(block for block in blocks if not FILE_NAME.match(block))


def not_run(path: Path) -> list[str]:
    """Returns why each block that is not run is not; an empty text if the page does not say it."""
    fence = rf"^(?:<!-- not run: (.+) -->\n)?```(?:{'|'.join(sorted(NOT_RUN))})$"
    return re.findall(fence, path.read_text(), re.MULTILINE)


def _commands(block: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, wanted = part.replace("\\\n", "").partition("\n")
        yield command, wanted


def _named(command: str) -> set[str]:
    """The ports that a server of this command would listen on; 0 is a free one."""
    ports = {_option(command, "metrics-port", "9464")}
    if "--unix-socket" not in command:
        ports.add(_option(command, "port", "50051"))
    return ports - {"0"}


def _option(command: str, name: str, default: str) -> str:
    found = re.search(rf"--{name} (\d+)", command)
    return found[1] if found else default


def _difference(wanted: str, printed: str) -> str | None:
    checker = doctest.OutputChecker()
    if checker.check_output(wanted.strip() + "\n", printed.strip() + "\n", OUTPUT):
        return None
    return checker.output_difference(doctest.Example("", wanted), printed, OUTPUT)
