"""Whether the package imported as `memwal` is this one.

Another project on the package index installs a package of that name too. Where its files lie over
ours, a part of ours would run with a part of theirs.
"""

from __future__ import annotations

import sys

DISTRIBUTION = "lance-memwal"


def find_stranger() -> str | None:
    """What to tell the user when the imported package is not ours; None when it is."""
    package = sys.modules[__name__.partition(".")[0]]
    if getattr(package, "DISTRIBUTION", None) == DISTRIBUTION:
        return None
    return (
        f"{package.__file__} belongs to another project whose package is imported as memwal too: "
        f"uninstall that one, then install {DISTRIBUTION} again (pip install --force-reinstall)"
    )
