"""What mkdocs does to a page before it makes HTML of it."""

from __future__ import annotations

import re


def on_page_markdown(markdown: str, **_: object) -> str:
    r"""Return the page with `|` for `\|` in code in tables.

    GitHub needs the backslash there; the site's Markdown would show it.
    """
    return re.sub(r"^\|.*$", _unescape_row, markdown, flags=re.MULTILINE)


def _unescape_row(row: re.Match[str]) -> str:
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0])
