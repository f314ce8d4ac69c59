"""The shell in which the commands of a page run, one after the other, as a reader types them."""

import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Shell"]

SECONDS = 120.0


class Shell:
    """One bash: what a command sets, such as a variable or the directory, holds for those after it."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=directory, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, command: str, seconds: float = SECONDS) -> str:
        """What a command prints, on either output. Raises TimeoutError, or EOFError if it ends the shell."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        end = uuid.uuid4().hex
        late = threading.Timer(seconds, self._kill)
        late.start()
        try:
            self._bash.stdin.write(f"{{ {command}\n}} < /dev/null\nprintf '\\n{end}\\n'\n")
            self._bash.stdin.flush()
            lines = []
            while (line := self._bash.stdout.readline()) != f"{end}\n":
                if not line:
                    printed = "".join(lines)
                    if late.finished.is_set():
                        raise TimeoutError(f"{command} runs longer than {seconds:.0f} s; it printed {printed!r}")
                    raise EOFError(f"{command} ended the shell; it printed {printed!r}")
                lines.append(line)
        finally:
            late.cancel()
        return "".join(lines).removesuffix("\n")

    def directory(self) -> Path:
        """The directory in which the next command runs."""
        return Path(self.run('printf %s "$PWD"'))

    def variables(self) -> dict[str, str]:
        """The environment of the next command."""
        lines = self.run("env -0").split("\0")
        return dict(line.partition("=")[::2] for line in lines if line)

    def close(self) -> None:
        """End the shell, and whatever it has started in the background."""
        self._kill()
        with self._bash:
            self._bash.communicate()

    def _kill(self) -> None:
        if self._bash.poll() is None:
            os.killpg(self._bash.pid, signal.SIGKILL)
