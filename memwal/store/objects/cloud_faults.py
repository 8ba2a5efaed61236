"""What obstore's errors mean. It gives most of them one class, and tells them apart in the text.

The texts quote whole requests, and a signature may be in an address: no more is shown of them than
the store's own status, code and message.
"""

from __future__ import annotations

import re

from obstore import exceptions as obs

from memwal.store.objects.base import Faults

_STATUS = re.compile(r"(?:status code: |\(code: )([0-9]{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]*)|Bulk delete request failed for key .*?: ([^\n]*) \(code")
_ADDRESS = re.compile(r"https?://\S+")
_DEBUG = "\n\nDebug source:"
_REFUSALS = {
    "ConnectionRefused": "connection refused",
    "Name or service not known": "no such host",
    "nodename nor servname": "no such host",
}
_ODD_RANGES = ("ParseContentRange", "NotPartial", "UnexpectedRange")
_BROKEN = {"Timeout": "no answer in time", "Connect": "no connection"}
_REFUSED_CODES = {"AuthenticationFailed", "ExpiredToken", "InvalidAuthenticationInfo"}
_NO_BUCKET_CODES = {"ContainerNotFound", "NoSuchBucket"}
# Where those who gave no credentials are asked for them, on hosts of the cloud alone.
_METADATA = ("169.254.169.254", "metadata.google.internal")


def status_of(error: BaseException) -> int:
    """The HTTP status of a refusal; 0 for what is none."""
    found = _STATUS.search(_text_of(error))
    return int(found[1]) if found else 0


def passes(error: BaseException) -> bool:
    """Whether a fault may be gone at the next try."""
    if is_refusal(error):
        return False
    status = status_of(error)
    if status:
        # 409: writes of one name met, and perhaps none has won.
        return status in (408, 409, 429) or (status >= 500 and status != 501)
    return "HttpError {" in str(error) and not is_plain_http(error)


def refusal_of(error: BaseException) -> str | None:
    """Why no connection came about, where waiting seldom helps; else None."""
    return next((says for sign, says in _REFUSALS.items() if sign in str(error)), None)


def cause_of(error: BaseException) -> str:
    """What it says, in one line."""
    text, status = _text_of(error), status_of(error)
    if _is_nobody(text):
        return "no credentials in options or variables, and this host has no identity of its own"
    if status:
        code, message = _CODE.search(text), _MESSAGE.search(text)
        said = (message[1] or message[2]) if message else ""
        return f"HTTP {status} {code[1] if code else ''}: {said}".replace(" :", ":")
    broken = re.search(r"HttpError \{\s*kind: ([A-Za-z]+)", str(error))
    if broken:
        return refusal_of(error) or _BROKEN.get(broken[1], "the connection broke")
    said = _ADDRESS.sub("…", text.partition("\n")[0])
    return re.sub(r"^Generic \w+ error: ", "", said)


def is_refusal(error: BaseException) -> bool:
    """Whether the store, or who gives tokens for it, does not take these credentials."""
    text = _text_of(error)
    return (
        _is_nobody(text)
        or isinstance(error, obs.PermissionDeniedError | obs.UnauthenticatedError)
        or status_of(error) in (401, 403)
        or ("token request" in text and 400 <= status_of(error) < 500 and status_of(error) != 429)
        or _code_of(error) in _REFUSED_CODES
    )


def is_no_bucket(error: BaseException) -> bool:
    """Whether there is no such bucket or container."""
    return _code_of(error) in _NO_BUCKET_CODES


def is_behind_end(error: BaseException) -> bool:
    """Whether the range that was asked for begins behind the object's end."""
    return status_of(error) == 416 or "StartTooLarge" in str(error)


def is_odd_range(error: BaseException) -> bool:
    """Whether what came is not the range that was asked for."""
    return any(
        sign in str(error) for sign in ("ParseContentRange", "NotPartial", "UnexpectedRange")
    )


def is_no_path(error: BaseException) -> bool:
    """Whether a folder holds an object whose key is no path."""
    return "object with invalid path" in _text_of(error)


def is_plain_http(error: BaseException) -> bool:
    """Whether it was not sent, as it would have gone over the network in the clear."""
    return "BadScheme" in str(error)


def _is_nobody(text: str) -> bool:
    """Whether no credentials were given, and where this host may have some there are none."""
    return "token request" in text and any(host in text for host in _METADATA)


def _text_of(error: BaseException) -> str:
    return str(error).partition(_DEBUG)[0]


def _code_of(error: BaseException) -> str:
    found = _CODE.search(_text_of(error))
    return found[1] if found else ""


CLOUD_FAULTS = Faults(
    kinds=(obs.BaseError, FileNotFoundError),
    passes=passes,
    refusal_of=refusal_of,
    cause_of=cause_of,
)
