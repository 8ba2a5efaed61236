"""Text as it may be shown, whoever wrote it: on terminals, in logs, in Airflow."""

from __future__ import annotations

import unicodedata

# Control characters, those that turn the direction of text or hide in it, halves of surrogate
# pairs, and the separators of lines and paragraphs.
_UNSHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def one_line(text: str) -> str:
    """Text as it may go to a terminal or a log: one line, and what is no plain character escaped.

    What is stored, and what a store or a library says, may be anybody's text.
    """
    if text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _UNSHOWN else c
        for c in text
    )
