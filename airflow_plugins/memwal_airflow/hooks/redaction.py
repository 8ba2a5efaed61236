"""Takes secrets, and what could forge a line, out of texts before anybody sees them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from memwal.text import one_line, shorten

ERROR_CHARACTERS_MAX = 2_000
TEXT_CHARACTERS_MAX = 600
# The patterns take time by the square of what they look through.
_CLEANED_CHARACTERS_MAX = 8 * TEXT_CHARACTERS_MAX
_SECRET_CHARACTERS_MIN = 4
_SECRET_WORDS = ("secret", "token", "key", "password", "credential", "sas", "auth")
# As memwal.config.mask_address has it: a secret key may hold slashes, so a colon in the host's
# place makes all up to the last @ a secret. A query may be a signature.
_USER_INFO = re.compile(r"(?<=://)(?:[^/\s@]+|[^/\s:@]*:\S*)@")
_QUERY = re.compile(r"(://[^\s?]+\?)[^\s'\")]+")


def is_secret(option: str) -> bool:
    """Whether a storage option is secret by its name."""
    return any(word in option.lower() for word in _SECRET_WORDS)


def find_secrets(options: Mapping[str, str]) -> set[str]:
    """The values of the storage options that are secret by their names."""
    return {value for option, value in options.items() if is_secret(option)}


def hide_secrets(text: str, secrets: Sequence[str]) -> str:
    """The text with the secrets starred out."""
    for secret in secrets:
        text = text.replace(secret, "***") if secret else text
    return text


def clean_line(text: str, secrets: Sequence[str]) -> str:
    """What a job said, on one line of bounded length, without the secrets."""
    # Secrets first: one that is cut or escaped is not found any more.
    line = one_line(shorten(hide_secrets(text, secrets), ERROR_CHARACTERS_MAX + 1))
    return shorten(line, ERROR_CHARACTERS_MAX + 1)


def change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """`value` (texts, lists, dicts) with each text in it changed, and keys on one line."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {one_line(key): change_texts(item, change) for key, item in value.items()}
    return [change_texts(item, change) for item in value] if isinstance(value, list) else value


class Redactor:
    """Takes known secrets, and credentials inside addresses, out of texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        worth = {secret for secret in secrets if len(secret) >= _SECRET_CHARACTERS_MIN}
        longest_first = sorted(worth, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if worth else None

    def clean(self, text: str | None) -> str | None:
        """The text, bounded, without secrets."""
        if text is None:
            return None
        text = shorten(text, _CLEANED_CHARACTERS_MAX)
        if self._known is not None:
            text = self._known.sub("***", text)
        return shorten(_QUERY.sub(r"\1***", _USER_INFO.sub("***@", text)), TEXT_CHARACTERS_MAX)
