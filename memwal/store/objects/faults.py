"""What the faults of object stores mean, whichever library raised them.

An error comes down to what the store answered (a status, a code, a text), or to why it did not.
What that means is decided here alone. boto3's errors are read in `s3_client`. obstore's have few
classes, and are told apart by their texts; these quote whole requests, and a signature may be in an
address, so no more of them is shown than the store's own status, code and message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from obstore import exceptions as obs

from memwal import errors
from memwal.text import count_of


class Meaning(Enum):
    """What a fault means."""

    PASSING = auto()
    """It may be gone at the next try."""
    DENIED = auto()
    """The store, or who gives tokens for it, does not take these credentials."""
    NO_BUCKET = auto()
    ELSEWHERE = auto()
    """The bucket is in another region of S3."""
    MISSING = auto()
    UNSUPPORTED = auto()
    PLAIN_HTTP = auto()
    """The request was not sent, because the connection would have been unencrypted."""
    NO_PATH = auto()
    """A folder holds an object whose key is no path."""
    BEHIND_END = auto()
    """The range that was asked for begins behind the object's end."""
    WHOLE = auto()
    """The store did not look at the range that was asked for, and began to send it all."""
    ODD_RANGE = auto()
    """What came is not the range that was asked for."""
    OTHER = auto()


_BY_STATUS = {
    301: Meaning.ELSEWHERE,
    401: Meaning.DENIED,
    403: Meaning.DENIED,
    404: Meaning.MISSING,
    408: Meaning.PASSING,
    409: Meaning.PASSING,  # writes of one name met, and perhaps none has won
    416: Meaning.BEHIND_END,
    429: Meaning.PASSING,
    501: Meaning.UNSUPPORTED,
}
_THROTTLE_CODES = {"SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException"}
_THROTTLE_CODES |= {"TooManyRequests", "RequestLimitExceeded"}
_CODES = {
    Meaning.PASSING: {"RequestTimeout", "InternalError"} | _THROTTLE_CODES,
    Meaning.DENIED: {
        *("AuthenticationFailed", "InvalidAuthenticationInfo", "ExpiredToken"),
        *("ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"),
    },
    Meaning.NO_BUCKET: {"ContainerNotFound", "NoSuchBucket"},
    Meaning.ELSEWHERE: {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"},
}
_BY_CODE = {code: meaning for meaning, codes in _CODES.items() for code in codes}
# In this order, where there is no status.
_BY_TEXT = {
    "redirect without LOCATION": Meaning.ELSEWHERE,
    "object with invalid path": Meaning.NO_PATH,
    "BadScheme": Meaning.PLAIN_HTTP,
    "StartTooLarge": Meaning.BEHIND_END,
    "NotPartial": Meaning.WHOLE,
    "ParseContentRange": Meaning.ODD_RANGE,
    "NoContentRange": Meaning.ODD_RANGE,
    "UnexpectedRange": Meaning.ODD_RANGE,
    "HttpError {": Meaning.PASSING,
    "invalid list response": Meaning.PASSING,
}

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
_BROKEN = {"Timeout": "no answer in time", "Connect": "no connection"}
# Where those who gave no credentials are asked for them, on hosts of the cloud alone.
_METADATA = ("169.254.169.254", "metadata.google.internal")
_NOBODY = "no credentials in options or variables, and this host has no identity of its own"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What an error says. The status is 0 where there is none, the code empty.

    `told` is the meaning where status and code have none; `refusal` why no connection came about,
    where waiting seldom helps; `text` one line, without secrets.
    """

    text: str
    status: int = 0
    code: str = ""
    told: Meaning = Meaning.OTHER
    refusal: str | None = None

    @property
    def meaning(self) -> Meaning:
        """What it means."""
        if self.told is not Meaning.OTHER:
            return self.told
        unknown = Meaning.PASSING if self.status >= 500 else Meaning.OTHER
        return _BY_CODE.get(self.code) or _BY_STATUS.get(self.status, unknown)

    @property
    def passes(self) -> bool:
        """Whether it may be gone at the next try."""
        return self.meaning is Meaning.PASSING

    @property
    def throttles(self) -> bool:
        """Whether the store asks for fewer requests."""
        return self.status in (429, 503) or self.code in _THROTTLE_CODES

    @property
    def cause(self) -> str:
        """What it says, in one line."""
        status = f"HTTP {self.status} {self.code}".rstrip()
        return f"{status}: {self.text}" if self.status else self.text

    def as_ours(self, request: str, uri: str, attempts: int) -> errors.MemWalError:
        """The error to raise for it, after so many attempts of a request below the root `uri`."""
        match self.meaning:
            case Meaning.DENIED:
                return errors.BadCredentials(f"{request}: access refused: {self.cause}")
            case Meaning.NO_BUCKET:
                bucket = uri.partition("://")[2].partition("/")[0]
                return errors.Usage(f"{uri}: there is no bucket or container {bucket!r}")
            case Meaning.ELSEWHERE:
                return errors.Usage(f"{uri}: is the storage option aws_region right? {self.cause}")
            case Meaning.MISSING:
                return errors.Missing(f"{request}: does not exist")
            case Meaning.PLAIN_HTTP:
                return errors.Usage(
                    f"{uri}: the endpoint is not https://; set the storage option allow_http=true "
                    "if requests may go over the network in the clear"
                )
            case Meaning.NO_PATH:
                return errors.Unsupported(
                    "MW-O04", f"{request}: {self.cause}; it can be listed once that is gone"
                )
            case Meaning.UNSUPPORTED:
                return errors.Unsupported(
                    "MW-O05", f"{request}: the store cannot do this: {self.cause}"
                )
        tries = count_of(attempts, "attempt")
        return errors.Unreachable(f"{request}: gave up after {tries}: {self.cause}")


class KeysThrottled(Exception):
    """A batch delete answered, but some of its keys ask for another try."""

    def __str__(self) -> str:
        return "the store kept refusing some of the objects for now"


OBSTORE_KINDS = (obs.BaseError, FileNotFoundError, KeysThrottled)
"""What `fault_of` knows."""


def fault_of(error: BaseException) -> Fault:
    """What an error of obstore's says."""
    if isinstance(error, KeysThrottled):
        return Fault(text=str(error), code="SlowDown")
    whole = str(error)
    text = whole.partition(_DEBUG)[0]
    asks_for_token = "token request" in text
    if asks_for_token and any(host in text for host in _METADATA):
        return Fault(text=_NOBODY, told=Meaning.DENIED)
    refusal = next((says for sign, says in _REFUSALS.items() if sign in whole), None)
    found, code = _STATUS.search(text), _CODE.search(text)
    status = int(found[1]) if found else 404 if isinstance(error, FileNotFoundError) else 0
    if status:
        message = _MESSAGE.search(text)
        denied = asks_for_token and 400 <= status < 500 and status != 429
        return Fault(
            text=(message[1] or message[2]) if message else "",
            status=status,
            code=code[1] if code else "",
            told=Meaning.DENIED if denied else Meaning.OTHER,
            refusal=refusal,
        )
    told = next((means for sign, means in _BY_TEXT.items() if sign in whole), Meaning.OTHER)
    if isinstance(error, obs.NotSupportedError):
        told = Meaning.UNSUPPORTED
    broken = re.search(r"HttpError \{\s*kind: ([A-Za-z]+)", whole)
    if broken:
        said = refusal or _BROKEN.get(broken[1], "the connection broke")
    else:
        said = re.sub(r"^Generic \w+ error: ", "", _ADDRESS.sub("…", text.partition("\n")[0]))
    return Fault(text=said, told=told, refusal=refusal)
