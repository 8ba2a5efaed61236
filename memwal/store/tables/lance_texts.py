"""The texts of Lance's errors, as they are shown to people."""

from __future__ import annotations

import re

from memwal.store.objects.full_disk import add_hint

# A place in Lance's source. The lookbehind lets a match begin only at the start of a path, so that
# the search takes linear time.
_RUST_SOURCE = re.compile(r",? ?(?<![\w./@+~-])/[\w./@+~-]*\.rs:\d+(:\d+)?")


def tidy_text(error: BaseException) -> str:
    """An error's first line, without places in Lance's source, and with advice for a full disk."""
    text = _RUST_SOURCE.sub("", str(error).split("\n", 1)[0]).strip()
    return add_hint(text.replace("?.", "?")) or type(error).__name__
