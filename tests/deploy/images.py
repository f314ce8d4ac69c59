"""Container images without an engine: buildah builds them as root, and what is in them runs in a chroot."""

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BASE_PACKAGES = ("bash", "dash", "coreutils", "base-files", "libc-bin", "libstdc++6", "ca-certificates", "python3-venv")
USR_MERGED = ("bin", "sbin", "lib", "lib64")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_CONF = Path("/etc/pip.conf")

RUN = """
set -eu
root=$1 settings=$2 user=$3 folder=$4
shift 4
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind "$settings" "$root/etc/udf-server"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind /dev "$root/dev"
exec chroot --userspec="$user" --groups= "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$folder" "$@"
"""
"""Runs a command as an engine would with --read-only, --tmpfs /tmp and a folder of settings mounted."""


def why_not() -> str:
    """Why images cannot be built here; empty if they can."""
    if not os.environ.get("UDF_CONTAINER_TEST"):
        return "takes minutes: `make container-test`, or set UDF_CONTAINER_TEST"
    if os.geteuid() != 0:
        return "needs root"
    missing = [
        tool for tool in ("buildah", "apt-cache", "dpkg-query", "unshare", "chroot") if shutil.which(tool) is None
    ]
    if missing:
        return f"needs {', '.join(missing)}"
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Status}\n", *BASE_PACKAGES], check=False, capture_output=True)
    return "" if asked.returncode == 0 else f"the base is made of installed packages: {', '.join(BASE_PACKAGES)}"


def write_base(tar: Path) -> None:
    """This machine's own minimal root, of installed packages: a stand-in for the base image, without a registry."""
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    found = _output(
        "apt-cache", "depends", "--recurse", "--installed", *(f"--no-{kind}" for kind in kinds), *BASE_PACKAGES
    )
    packages = {line for line in found.splitlines() if line and not line.startswith((" ", "<"))}
    paths = _output("dpkg-query", "-L", *sorted(packages)).splitlines()
    with tarfile.open(tar, "w") as archive:
        for name in USR_MERGED:
            archive.add(f"/{name}", name, recursive=False)
        for path in sorted({_real(path) for path in paths if path.startswith("/")} | {CERTIFICATES}):
            unwanted = path.parts[:4] in (("/", "usr", "share", "doc"), ("/", "usr", "share", "man"))
            if not unwanted and os.path.lexists(path) and str(path) not in {"/", *(f"/{name}" for name in USR_MERGED)}:
                archive.add(path, str(path)[1:], recursive=False)
        for name in ("proc", "sys", "dev", "tmp", "etc/udf-server"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)


class Images:
    """The images of one store."""

    def __init__(self, store: Path) -> None:
        self._store = store

    def buildah(self, *arguments: str | Path) -> str:
        """What it prints. Raises AssertionError with what went wrong."""
        places = ("--storage-driver", "vfs", "--root", self._store / "root", "--runroot", self._store / "run")
        return _output("buildah", *places, *arguments, environment={"BUILDAH_ISOLATION": "chroot"})

    def load(self, tar: Path, name: str) -> None:
        """An image of one layer."""
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, tar, "/")
        self.buildah("commit", "--quiet", container, name)
        self.buildah("rm", container)

    def build(self, name: str, file: Path, context: Path, **arguments: str) -> None:
        """As `docker build` would, with this machine's pip settings and certificates."""
        options: list[str | Path] = ["--format", "docker", "--pull-never", "--tag", name, "--file", file]
        for argument, value in arguments.items():
            options += ["--build-arg", f"{argument}={value}"]
        if PIP_CONF.exists():
            options += ["--secret", f"id=pip,src={PIP_CONF}"]
        if CERTIFICATES.exists():
            options += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
        self.buildah("build", *options, context)

    def config(self, name: str) -> dict[str, Any]:
        """The image's own settings, as Docker has them: Env, Entrypoint, Cmd, User, Healthcheck, Labels, ..."""
        config: dict[str, Any] = json.loads(self.buildah("inspect", "--type", "image", name))["Docker"]["config"]
        return config

    @contextlib.contextmanager
    def mounted(self, name: str) -> Iterator[Path]:
        """The file system of a container of the image."""
        container = self.buildah("from", "--pull-never", name)
        yield Path(self.buildah("mount", container))
        self.buildah("rm", container)


class Container:
    """Commands in a root file system that they cannot write to, with the user and environment of the image."""

    def __init__(self, root: Path, config: Mapping[str, Any], settings: Path, **environment: str) -> None:
        self._environment = [*config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        self._place = (str(root), str(settings), config["User"], config["WorkingDir"])

    def command(self, *command: str) -> Sequence[str]:
        """The command line outside that runs a command inside; signals reach it."""
        unshare = shutil.which("unshare") or "unshare"
        return (
            "env",
            "-i",
            *self._environment,
            unshare,
            "--mount",
            "/bin/sh",
            "-c",
            RUN,
            "run",
            *self._place,
            *command,
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*command), check=False, capture_output=True, text=True, timeout=60)


def _real(path: str) -> Path:
    """The path without links among its folders, for /lib is one."""
    return Path(path).parent.resolve() / Path(path).name


def _output(*command: str | Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], check=False, capture_output=True, text=True, timeout=480,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, f"{command[0]}: {(done.stdout + done.stderr)[-4000:]}"
    return done.stdout.strip()
