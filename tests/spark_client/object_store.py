"""A small object store that speaks the part of S3's protocol that pyarrow and s3fs use, in a process of its own.

Objects are whole or missing, there is no rename, and directories do not exist. This file, run
as a program, prints its port.
"""

import sys
import threading
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

__all__ = ["Handler"]

OBJECTS: dict[str, bytes] = {}
UPLOADS: dict[str, dict[int, bytes]] = {}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Answers requests. Keys are `bucket/name`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    @property
    def key(self) -> str:
        return urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/") + (
            "/" if urllib.parse.urlsplit(self.path).path.endswith("/") else ""
        )

    @property
    def query(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query, keep_blank_values=True))

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        else:
            data = self._chunks(self.rfile)
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        parts, position = [], 0
        while True:
            end = data.index(b"\r\n", position)
            size = int(data[position:end].partition(b";")[0], 16)
            if not size:
                return b"".join(parts)
            parts.append(data[end + 2 : end + 2 + size])
            position = end + 4 + size

    @staticmethod
    def _chunks(source) -> bytes:
        parts = []
        while size := int(source.readline().partition(b";")[0], 16):
            parts.append(source.read(size))
            source.readline()
        while source.readline().strip():
            pass
        return b"".join(parts)

    def answer(self, code: int = 200, content: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        length = headers.pop("content_length", str(len(content)))
        for name, value in {"Content-Length": length, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def missing(self) -> None:
        self.answer(404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>")

    def do_HEAD(self) -> None:
        if "/" not in self.key.rstrip("/"):
            self.answer(x_amz_bucket_region="us-east-1")
        elif self.key in OBJECTS:
            size = str(len(OBJECTS[self.key]))
            self.answer(content_length=size, ETag='"e"', Last_Modified="Mon, 23 Nov 2026 00:00:00 GMT")
        else:
            self.missing()

    def do_GET(self) -> None:
        if "list-type" in self.query:
            self.answer(200, self._listing().encode(), Content_Type="application/xml")
        elif self.key not in OBJECTS:
            self.missing()
        else:
            data, ranged = OBJECTS[self.key], self.headers.get("Range")
            if not ranged:
                self.answer(200, data, ETag='"e"')
                return
            first, _, last = ranged.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(data)), len(data) - 1)
            size = f"bytes {begin}-{end}/{len(data)}"
            self.answer(206, data[begin : end + 1], ETag='"e"', Content_Range=size)

    def _listing(self) -> str:
        bucket, prefix = self.key.rstrip("/"), self.query.get("prefix", "")
        delimiter = self.query.get("delimiter", "")
        found, folders = [], set()
        for key in sorted(OBJECTS):
            name = key.removeprefix(bucket + "/")
            if key == name or not name.startswith(prefix):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                found.append((name, len(OBJECTS[key])))
        most = int(self.query.get("max-keys", 1000))
        objects = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>e</ETag>"
            "<LastModified>2026-11-23T00:00:00.000Z</LastModified></Contents>"
            for name, size in found[:most]
        )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
        count = len(found[:most]) + len(folders)
        return (
            f"<ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{objects}{prefixes}</ListBucketResult>"
        )

    def do_PUT(self) -> None:
        data, query = self.body(), self.query
        copied = self.headers.get("x-amz-copy-source")
        with LOCK:
            if copied:
                source = urllib.parse.unquote(copied).lstrip("/")
                if source not in OBJECTS:
                    self.missing()
                    return
                OBJECTS[self.key] = OBJECTS[source]
                self.answer(200, b"<CopyObjectResult><ETag>e</ETag></CopyObjectResult>")
                return
            if "uploadId" in query:
                UPLOADS[query["uploadId"]][int(query["partNumber"])] = data
            else:
                OBJECTS[self.key] = data
        self.answer(ETag='"e"')

    def do_POST(self) -> None:
        data, query = self.body(), self.query
        with LOCK:
            if "uploads" in query:
                upload = uuid.uuid4().hex
                UPLOADS[upload] = {}
                bucket, _, name = self.key.partition("/")
                text = f"<Bucket>{bucket}</Bucket><Key>{escape(name)}</Key><UploadId>{upload}</UploadId>"
                answer = f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>"
            elif "uploadId" in query:
                parts = UPLOADS.pop(query["uploadId"])
                OBJECTS[self.key] = b"".join(parts[number] for number in sorted(parts))
                answer = "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
            else:  # several objects are deleted
                for part in data.decode().split("<Key>")[1:]:
                    name = part.partition("</Key>")[0].replace("&amp;", "&")
                    OBJECTS.pop(f"{self.key.rstrip('/')}/{name}", None)
                answer = "<DeleteResult></DeleteResult>"
        self.answer(200, answer.encode(), Content_Type="application/xml")

    def do_DELETE(self) -> None:
        with LOCK:
            OBJECTS.pop(self.key, None)
            UPLOADS.pop(self.query.get("uploadId", ""), None)
        self.answer(204)


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
