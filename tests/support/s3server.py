"""moto's S3 server as a subprocess, for tests. State lives as long as the process."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Sequence

from tests.support.child_server import ChildServer

# The server ends when its stdin does, so it does not outlive a test run that was killed. moto looks
# for an object that `If-None-Match` forbids, and then stores: threads could both find none.
_SERVE = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
from moto.s3.responses import S3Response
from moto.server import main
put, one_at_a_time = S3Response._key_response_put, threading.Lock()
def put_atomically(*given):
    with one_at_a_time:
        return put(*given)
S3Response._key_response_put = put_atomically
main(sys.argv[1:])
"""
# What some servers do that speak S3's protocol, in the buckets that have it in their name:
# conditions  each put of a name replaces the one before it, `If-None-Match` or not
# suffixes    the last N bytes of an object are taken for its first ones
# folders     pages are short, and a listing of the folders below `_mem_wal` has none
# tokens      a session token is the time, in milliseconds, when its credentials expire
# answers     one put in fifteen is done, and answered by an error for all that
_ODD = """
import random, re, time
from moto.moto_server.werkzeug_app import DomainDispatcherApplication as Application
answer = Application.__call__
def answer_oddly(application, environ, start_response):
    quirks = environ["PATH_INFO"].split("/")[1].split("-")
    asked = environ.get("QUERY_STRING", "")
    token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN")
    if "tokens" in quirks and token and int(token) < time.time() * 1000:
        start_response("400 Bad Request", [("Content-Type", "application/xml")])
        return [b"<Error><Code>ExpiredToken</Code><Message>it has expired</Message></Error>"]
    put = environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].count("/") > 1
    if "answers" in quirks and put and random.random() < 1 / 15:
        for part in answer(application, environ, lambda *given: None):
            pass
        start_response("503 Slow Down", [("Content-Length", "0")])
        return []
    if "conditions" in quirks:
        environ.pop("HTTP_IF_NONE_MATCH", None)
    if "suffixes" in quirks and "HTTP_RANGE" in environ:
        environ["HTTP_RANGE"] = environ["HTTP_RANGE"].replace("bytes=-", "bytes=0-")
    if "folders" not in quirks or "list-type=2" not in asked:
        return answer(application, environ, start_response)
    environ["QUERY_STRING"] = asked + "&max-keys=7"
    if "delimiter" not in asked or "_mem_wal" not in asked:
        return answer(application, environ, start_response)
    begun = []
    whole = b"".join(answer(application, environ, lambda *given: begun.append(given)))
    body = re.sub(rb"<CommonPrefixes>.*?</CommonPrefixes>", b"", whole, flags=re.DOTALL)
    status, headers = begun[0][:2]
    kept = [pair for pair in headers if pair[0].lower() != "content-length"]
    start_response(status, [*kept, ("Content-Length", str(len(body)))])
    return [body]
Application.__call__ = answer_oddly
"""
# Google's service takes S3's requests, with names of its own for what is conditional. That is all
# that obstore and Lance ask for, so this stands in for it; it is no real server of Google's.
_LIKE_GCS = """
from moto.moto_server.werkzeug_app import DomainDispatcherApplication as Application
answer = Application.__call__
SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, Signature=none"
def answer_like_gcs(application, environ, start_response):
    if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
        environ["HTTP_IF_NONE_MATCH"] = "*"
    environ["HTTP_AUTHORIZATION"] = SIGNED
    for name in ("RAW_URI", "REQUEST_URI"):
        environ[name] = environ.get(name, "").replace("%2D", "-")
    def start(status, headers, *more):
        return start_response(status, [*headers, ("x-goog-generation", "1")], *more)
    return answer(application, environ, start)
Application.__call__ = answer_like_gcs
"""


class S3Server(ChildServer):
    """`with S3Server() as server:`. Storage options fit memwal's store and pylance alike."""

    program = _ODD + _SERVE
    """What the subprocess runs."""
    probed = "/moto-api/"

    def __init__(self, *quirks: str) -> None:
        """All of its buckets have these of the quirks above."""
        super().__init__()
        self._quirks = quirks

    def command(self, port: int) -> Sequence[str]:
        """See ChildServer."""
        self.endpoint = f"http://127.0.0.1:{port}"
        self.storage_options = {
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
            "aws_access_key_id": "test-key-id",
            "aws_secret_access_key": "test-secret",
            "aws_region": "us-east-1",
        }
        return [sys.executable, "-c", self.program, "-H", "127.0.0.1", "-p", str(port)]

    def make_bucket(self, *quirks: str) -> str:
        """A new bucket's name; what is in it keeps S3's rules but for these."""
        name = "-".join((*self._quirks, *quirks, self.make_name("bucket")))
        urllib.request.urlopen(
            urllib.request.Request(f"{self.endpoint}/{name}", method="PUT"), timeout=30
        ).close()
        return name


class GcsLikeServer(S3Server):
    """The same for `gs://`."""

    program = f"{_LIKE_GCS}\n{_SERVE}"

    def command(self, port: int) -> Sequence[str]:
        """See ChildServer."""
        command = super().command(port)
        self.storage_options = {
            "google_base_url": self.endpoint,
            "google_storage_token": "test-token",
            "allow_http": "true",
        }
        return command
