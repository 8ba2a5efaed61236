"""What S3's errors mean: which are transient, and what they say."""

from __future__ import annotations

import socket

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from memwal.store.objects.base import Faults

NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.SSOError,
    boto.ProfileNotFound,
)
REFUSED_CODES = {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}
WRONG_REGION_CODES = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_TRANSIENT_CODES = {"RequestTimeout", "InternalError", "SlowDown", "ServiceUnavailable"}
_TRANSIENT_CODES |= {"Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"}
_CAUSES_MAX = 10
_TRANSIENT_ERRORS = (
    boto.ConnectionError,  # no connection came about
    boto.HTTPClientError,  # resets, timeouts, also while the body is read
    boto.IncompleteReadError,
    ResponseParserError,
)


class KeysThrottled(Exception):
    """A batch delete answered, but some of its keys ask for another try."""

    def __str__(self) -> str:
        return "the store kept refusing some of the objects for now"


def passes(fault: BaseException | str | None) -> bool:
    """Whether a fault (an exception, or a key's error code) may be gone at the next try."""
    if isinstance(fault, str):
        return fault in _TRANSIENT_CODES
    if isinstance(fault, boto.ClientError):
        status = status_of(fault)
        return (
            # 409: writes of one key met, and perhaps none has won.
            status in (408, 409, 429)
            or (status >= 500 and status != 501)
            or code_of(fault) in _TRANSIENT_CODES
        )
    return isinstance(fault, (*_TRANSIENT_ERRORS, KeysThrottled))


def status_of(error: BaseException | None) -> int:
    """The HTTP status of a refusal; 0 for what is none."""
    if not isinstance(error, boto.ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: BaseException) -> str:
    """S3's own code; empty for what is no refusal."""
    if not isinstance(error, boto.ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def refusal_of(error: BaseException) -> str | None:
    """Why no connection came about, where waiting seldom helps; else None."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            return "no such host"
        cause = cause and (cause.__cause__ or cause.__context__)
    return None


def cause_of(error: BaseException) -> str:
    """What it says, in one line."""
    if not isinstance(error, boto.ClientError):
        refusal = refusal_of(error)
        return f"{refusal}: {error}" if refusal else str(error)
    message = error.response.get("Error", {}).get("Message", "")
    return f"HTTP {status_of(error)} {code_of(error)}: {message}"


S3_FAULTS = Faults(
    kinds=(boto.BotoCoreError, boto.ClientError, ResponseParserError, KeysThrottled),
    passes=passes,
    refusal_of=refusal_of,
    cause_of=cause_of,
)
