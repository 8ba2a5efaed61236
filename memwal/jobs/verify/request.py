"""What one may ask of a verify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwal.options import Option


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """How closely to look."""

    deep: Annotated[
        bool,
        Option(
            meaning="Read all of the base, its indexes and generations, too: only that finds what "
            "is garbled at its full length, and keys that the base holds more than once.",
        ),
    ] = False
