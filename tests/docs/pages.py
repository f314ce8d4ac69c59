"""Runs a page of the documentation as a reader would: in an empty directory, from its first block to its last.

A `python` block is executed; one that begins with a file's name in a comment is written to that file
instead, as is a `toml` block. A `text` block is what the block before it prints. In a `console` block
lines with `$` are commands and the others what they print. `...` stands for anything. A server that a
page starts gets a free port instead of the one it names, and runs until the page ends.
"""

import contextlib
import doctest
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sybil import Document, Example
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = {"mermaid", "bash", "dockerfile"}
"""Pictures, commands that set up or run the whole project, and what tests/deploy builds."""
FILE_NAME = re.compile(r"# ([\w-]+\.(?:py|toml))\n")
TARGET, METRICS = re.compile(r"(?:localhost|127\.0\.0\.1):50051"), re.compile(r"(?:localhost|127\.0\.0\.1):9464")
OUTPUT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Page:
    """One run of one page."""

    def __init__(self, path: Path, directory: Path, namespace: dict[str, Any]) -> None:
        evaluators = {"python": self.python, "toml": self.file, "text": self.text, "console": self.console}
        parsers = [CodeBlockParser(language, evaluator) for language, evaluator in evaluators.items()]
        self._document = Document.parse(str(path), SkipParser(), *parsers)
        self._document.namespace.update(namespace)
        self._directory = directory
        self._python = PythonEvaluator()
        self._printed = ""
        self._servers: list[subprocess.Popen[str]] = []
        self._target, self._metrics = "localhost:50051", "localhost:9464"

    def run(self) -> int:
        """Raises what the page raises; SybilFailure, with the line, for other output. The number of blocks that ran."""
        blocks = 0
        try:
            for example in self._document.examples():
                example.evaluate()
                blocks += 1
        finally:
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
        (self._directory / name[1]).write_text(example.parsed)
        return None

    def text(self, example: Example) -> str | None:
        return _difference(example.parsed, self._printed)

    def console(self, example: Example) -> str | None:
        for command, wanted in _commands(example.parsed):
            if command.startswith("udf-server serve") and wanted.startswith("{"):
                printed = self._serve(command)
            else:
                done = subprocess.run(
                    self._addressed(command), check=False, shell=True, cwd=self._directory, env=_environment(),
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                )  # fmt: skip
                printed = done.stdout
            difference = _difference(wanted, printed)
            if difference is not None:
                return f"{command}\n{difference}"
        return None

    def _serve(self, command: str) -> str:
        server = subprocess.Popen(
            f"exec {command} --port 0 --metrics-port 0 --log-level error", shell=True, cwd=self._directory,
            env=_environment(), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._servers.append(server)
        assert server.stdout is not None
        line = server.stdout.readline()
        ready = json.loads(line)
        self._target, self._metrics = ready["target"], ready["metrics"].removeprefix("http://")
        return line.replace(self._target, "127.0.0.1:50051").replace(self._metrics, "127.0.0.1:9464")

    def _addressed(self, source: str) -> str:
        return METRICS.sub(self._metrics, TARGET.sub(self._target, source))


def languages(path: Path) -> set[str]:
    """Of every fenced block of the page; empty text for one that has none."""
    return set(re.findall(r"^ *```(\S*)[^\n]*\n.*?^ *```$", path.read_text(), re.MULTILINE | re.DOTALL))


def _commands(block: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, wanted = part.partition("\n")
        yield command, wanted


def _difference(wanted: str, printed: str) -> str | None:
    checker = doctest.OutputChecker()
    if checker.check_output(wanted.strip() + "\n", printed.strip() + "\n", OUTPUT):
        return None
    return checker.output_difference(doctest.Example("", wanted), printed, OUTPUT)


def _environment() -> dict[str, str]:
    """What is installed beside the project does not show up on the page."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "UDF_CONFIG_ENTRY_POINTS": "false"}
