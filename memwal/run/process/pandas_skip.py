"""Speeds up the start: pandas is not imported until it is needed.

pyarrow imports pandas, if it is installed, for a single constant, and that takes half of the time
of importing Lance. It manages without, as if pandas were not installed, and still imports it to
make a data frame.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_WANTS_IT = "pyarrow._dataset"


class _Skip(MetaPathFinder):
    """Hides pandas while `pyarrow._dataset` is being imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = getattr(sys.modules.get(_WANTS_IT), "__spec__", None)
        if fullname == "pandas" and getattr(spec, "_initializing", False):
            raise ModuleNotFoundError("pandas is skipped", name=fullname)
        return None


def start() -> None:
    """Skip pandas. Only for processes of our own: pyarrow then takes a Series for any list."""
    if not any(isinstance(finder, _Skip) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Skip())
