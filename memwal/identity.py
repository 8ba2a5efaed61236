"""Whether the package imported as `memwal` is this one.

Another project on the package index installs a package of the same name. Where its files have
overwritten some of ours, modules of both projects would run together.
"""

from __future__ import annotations

import sys

DISTRIBUTION = "lance-memwal"


def print_versions() -> None:
    """Say which memwal this is, and the libraries it would run with; imports none of them."""
    from importlib.metadata import PackageNotFoundError, version

    print(f"memwal {find_version()} ({DISTRIBUTION})")
    for library in ("pylance", "pyspark"):
        try:
            found = version(library)
        except PackageNotFoundError:
            found = "not installed"
        print(library, found)


def find_version() -> str:
    """The package's own version."""
    return str(vars(sys.modules[__name__.partition(".")[0]])["__version__"])


def find_stranger() -> str | None:
    """Return what to tell the user if the imported package is not ours; None if it is."""
    package = sys.modules[__name__.partition(".")[0]]
    if getattr(package, "DISTRIBUTION", None) == DISTRIBUTION:
        return None
    return (
        f"{package.__file__} belongs to another project whose package is imported as memwal too: "
        f"uninstall that one, then install {DISTRIBUTION} again (pip install --force-reinstall)"
    )
