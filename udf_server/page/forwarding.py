"""ForwardedSource gets the web UI's contents from worker processes. Statistics are added; one worker makes a call."""

import json
from collections.abc import Callable, Sequence
from http import HTTPStatus
from urllib.error import HTTPError

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from udf_server.page.catalogue import Catalogue, added_up
from udf_server.page.site import Credentials, HttpRefusal, Tried

__all__ = ["Ask", "ForwardedSource"]

Ask = Callable[[str, Credentials, bytes | None], str]
"""Requests a path from a worker, with a body or without. Raises OSError, of which HTTPError is a subclass."""


class ForwardedSource:
    """`workers` returns one function per current worker, which sends a request to it."""

    def __init__(self, workers: Callable[[], Sequence[Ask]]) -> None:
        self._workers = workers

    def catalogue(self, credentials: Credentials) -> Catalogue:
        found = []
        for ask in self._workers():
            try:
                found.append(json.loads(ask("/catalog.json", credentials, None)))
            except HTTPError as error:
                _refuse(error)
            except OSError:
                continue  # it is being restarted
        if not found:
            raise HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, "no worker process answers")
        return added_up(found)

    def try_call(self, credentials: Credentials, function: str, arguments: list[str]) -> Tried:
        body = json.dumps({"function": function, "arguments": arguments}).encode()
        for ask in self._workers():
            try:
                said: Tried = json.loads(ask("/try", credentials, body))
            except HTTPError as error:
                _refuse(error)
            except OSError:
                continue
            else:
                return said
        raise HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, "no worker process answers")


def _refuse(error: HTTPError) -> None:
    """Raise the error that the worker has returned."""
    with error:
        try:
            said = json.loads(error.read())["error"]
        except (ValueError, LookupError):  # the response is not from its web UI
            raise HttpRefusal(HTTPStatus(error.code), str(error.reason)) from error
    if error.code == HTTPStatus.UNAUTHORIZED:
        raise StreamError(ErrorKind.PROTOCOL, ErrorCode.UNAUTHENTICATED, said["message"])
    raise HttpRefusal(HTTPStatus(error.code), said["message"])
