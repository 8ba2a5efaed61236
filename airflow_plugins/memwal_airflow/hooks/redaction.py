"""Removes secrets, and whatever could forge a log line, from texts before anybody sees them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from memwal.text import one_line, shorten

ERROR_CHARACTERS_MAX = 2_000
TEXT_CHARACTERS_MAX = 600
# The patterns take quadratic time, so the text that they search is bounded.
_CLEANED_CHARACTERS_MAX = 8 * TEXT_CHARACTERS_MAX
_SECRET_CHARACTERS_MIN = 4
_SECRET_WORDS = ("secret", "token", "key", "password", "credential", "sas", "auth")
# As in memwal.config.mask_address: a secret key may hold slashes, so after a colon in the host's
# place everything up to the last @ is secret. A query may be a signature.
_USER_INFO = re.compile(r"(?<=://)(?:[^/\s@]+|[^/\s:@]*:\S*)@")
_QUERY = re.compile(r"(://[^\s?]+\?)[^\s'\")]+")


def is_secret(option: str) -> bool:
    """Whether the name of a storage option says that it is secret."""
    return any(word in option.lower() for word in _SECRET_WORDS)


def find_secrets(options: Mapping[str, str]) -> set[str]:
    """Return the values of the storage options whose names say that they are secret."""
    return {value for option, value in options.items() if is_secret(option)}


def hide_secrets(text: str, secrets: Sequence[str]) -> str:
    """Return the text with the secrets starred out."""
    for secret in secrets:
        text = text.replace(secret, "***") if secret else text
    return text


def clean_line(text: str, secrets: Sequence[str]) -> str:
    """Put what a job said on one line of bounded length, without the secrets."""
    # Secrets first: one that has been cut or escaped would not be found.
    line = one_line(shorten(hide_secrets(text, secrets), ERROR_CHARACTERS_MAX + 1))
    return shorten(line, ERROR_CHARACTERS_MAX + 1)


def change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return `value` (texts, lists, dicts) with every text changed and every key on one line."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {one_line(key): change_texts(item, change) for key, item in value.items()}
    return [change_texts(item, change) for item in value] if isinstance(value, list) else value


class Redactor:
    """Removes known secrets, and credentials inside addresses, from texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        worth = {secret for secret in secrets if len(secret) >= _SECRET_CHARACTERS_MIN}
        longest_first = sorted(worth, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if worth else None

    def clean(self, text: str | None) -> str | None:
        """Return the text without secrets, bounded in length; None for None."""
        if text is None:
            return None
        text = shorten(text, _CLEANED_CHARACTERS_MAX)
        if self._known is not None:
            text = self._known.sub("***", text)
        return shorten(_QUERY.sub(r"\1***", _USER_INFO.sub("***@", text)), TEXT_CHARACTERS_MAX)
