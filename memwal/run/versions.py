"""The pylance versions that this build was tested with."""

from __future__ import annotations

from memwal.errors import Unsupported
from memwal.store.tables.datasets import lance_version

# The requirement in pyproject.toml names them too; a test compares the two.
TESTED_LANCE_MAJORS = (14,)


def check_lance_version(allowed: bool) -> None:
    """Raise Unsupported for a pylance that was never tested, unless that is `allowed`."""
    version = lance_version()
    if int(version.split(".")[0]) not in TESTED_LANCE_MAJORS and not allowed:
        tested = ", ".join(f"{major}.x" for major in TESTED_LANCE_MAJORS)
        raise Unsupported(
            "MW-E01",
            f"pylance {version} is installed; tested are {tested}. Install one of those, or pass "
            "--allow-untested-lance",
        )
