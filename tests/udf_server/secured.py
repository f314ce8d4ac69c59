"""Shared parts of the tests of security: certificates, and one call with credentials."""

from dataclasses import replace

import trustme

import udf_server as udf
from spark_client.base.config import ClientConfig
from spark_client.executor.stream.transport import transport_for
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of

__all__ = ["Pki", "answers", "plus_one"]


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


class Pki:
    """An authority, and certificates of it as files."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = self._file("ca.pem", self.authority.cert_pem)

    def _file(self, name, *blobs):
        path = self.folder / name
        path.write_bytes(b"".join(blob.bytes() for blob in blobs))
        return str(path)

    def issue(self, name, common_name="server", names=("localhost", "127.0.0.1")):
        """Certificate and key files; files of that name are replaced."""
        made = self.authority.issue_cert(*names, common_name=common_name)
        return self._file(f"{name}.pem", *made.cert_chain_pems), self._file(f"{name}.key", made.private_key_pem)


def answers(target, security, function=plus_one):
    """What the function answers for 1 to a caller of that kind."""
    call = call_of(function, target)
    call = replace(call, config=ClientConfig(target, 5.0, security))
    stream = stream_of(call, transport_for(call.config))
    stream.submit(chunk_of([1]))
    found = everything(stream)
    stream.finish()
    return found[0]
