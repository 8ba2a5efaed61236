"""Storage options as the file, the environment and command lines give them. Some are secrets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from memwal.errors import Usage

STORAGE_OPTIONS_VARIABLE = "MEMWAL_STORAGE_OPTIONS"
# pylance's own name for how long a request is tried, in seconds.
WAIT_OPTION = "client_retry_timeout"
# Ours, for the requests a second that a process may send to a store; pylance passes over it.
RATE_OPTION = "requests_per_second_max"
LIMIT_OPTIONS = {"store_seconds_max": WAIT_OPTION, RATE_OPTION: RATE_OPTION}
"""Settings that are storage options too, so that they reach Lance, executors and processes."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Options that say where requests go, as pylance's stores name them.
_ENDPOINT = re.compile("endpoint|url|uri|host(?!ed)|proxy", re.IGNORECASE)


def expand(
    option: str,
    value: str,
    environment: Mapping[str, str],
    *,
    what: str = "storage option",
    is_place: bool = False,
) -> str:
    """An option's value in the file, with `${…}` replaced. Raises Usage, which shows no value.

    `what` the option is; one that says where requests go takes no variable: by its name, or because
    it `is_place`.
    """
    if (is_place or _ENDPOINT.search(option)) and _VARIABLE.search(value):
        instead = f", or give it as --storage-option or in {STORAGE_OPTIONS_VARIABLE}"
        raise Usage(
            f"{what} {option!r} in the configuration says where requests go: no ${{…}} in it; "
            f"write it out{'' if is_place else instead}"
        )

    def look_up(match: re.Match[str]) -> str:
        found = environment.get(match[1])
        if found is None:
            raise Usage(f"{what} {option!r}: environment variable {match[1]} is not set")
        return found

    return _VARIABLE.sub(look_up, value)


def read_environment_options(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The storage options in `MEMWAL_STORAGE_OPTIONS`, a JSON object; it may hold secrets.

    Raises Usage, which names a bad option but shows no value.
    """
    text = environment.get(STORAGE_OPTIONS_VARIABLE, "")
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Usage(f"{STORAGE_OPTIONS_VARIABLE}: expected a JSON object of storage options")
    options = {}
    for key, value in found.items():
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, str | int) or not key:
            raise Usage(f"{STORAGE_OPTIONS_VARIABLE}: {key!r}: expected a text, a number or a bool")
        options[key] = str(value)
    return options
