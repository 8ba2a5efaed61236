"""What Lance's errors say, as people are shown it."""

from __future__ import annotations

import re

from memwal.store.objects.full_disk import add_hint

# A place in Lance's source. A path in it begins where none goes on, so that each is looked at once.
_RUST_SOURCE = re.compile(r",? ?(?<![\w./@+~-])/[\w./@+~-]*\.rs:\d+(:\d+)?")


def tidy_text(error: BaseException) -> str:
    """An error's first line without the places in Lance's own source."""
    text = _RUST_SOURCE.sub("", str(error).split("\n", 1)[0]).strip()
    return add_hint(text.replace("?.", "?")) or type(error).__name__
