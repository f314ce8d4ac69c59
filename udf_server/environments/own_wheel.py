"""A wheel of this server's own packages, made of its installation: no index has to have them."""

import base64
import hashlib
import importlib.metadata
import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["DISTRIBUTION", "own_code", "write_own_wheel"]

DISTRIBUTION = "remote-udf"
_PACKAGES = ("remote_udf", "udf_server")


def _files() -> Iterator[tuple[str, bytes]]:
    """Name in the wheel and content."""
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parent
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield f"{package}/{file.relative_to(folder).as_posix()}", file.read_bytes()


def own_code() -> str:
    """What identifies the code of this server."""
    digest = hashlib.sha256(importlib.metadata.version(DISTRIBUTION).encode())
    for name, content in _files():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def write_own_wheel(folder: Path) -> Path:
    """Write the wheel into a folder. Returns its path."""
    distribution = importlib.metadata.distribution(DISTRIBUTION)
    name = f"{DISTRIBUTION.replace('-', '_')}-{distribution.version}"
    about = f"{name}.dist-info"
    files = [*_files(), (f"{about}/METADATA", (distribution.read_text("METADATA") or "").encode())]
    files.append(
        (f"{about}/WHEEL", b"Wheel-Version: 1.0\nGenerator: udf-server\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    )
    path = folder / f"{name}-py3-none-any.whl"
    record = ""
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in files:
            wheel.writestr(file, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{file},sha256={digest},{len(content)}\n"
        wheel.writestr(f"{about}/RECORD", f"{record}{about}/RECORD,,\n")
    return path
