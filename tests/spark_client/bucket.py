"""A bucket of an object store in another process, which pyarrow's own client uses."""

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["SECRET", "bucket_of"]

SECRET = "a-secret-of-the-environment"


@contextlib.contextmanager
def bucket_of(scheme: str) -> Iterator[str]:
    """The URI of an empty bucket, whose credentials are in the environment."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("object_store.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdin is not None and server.stdout is not None
    with pytest.MonkeyPatch.context() as environment, server:
        port = server.stdout.readline().strip()
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        environment.setenv("AWS_REGION", "us-east-1")
        environment.setenv("AWS_ACCESS_KEY_ID", "someone")
        environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield f"{scheme}://bucket-{uuid.uuid4().hex}"
        server.stdin.close()
