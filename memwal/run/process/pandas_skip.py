"""Starting fast: pandas is not imported until somebody needs it.

pyarrow imports it where it is installed, for the sake of one constant, which is half of what
importing Lance takes. It does without, as where there is none, and imports it to make a frame.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_WANTS_IT = "pyarrow._dataset"


class _Skip(MetaPathFinder):
    """Finds no pandas while that module of pyarrow is being imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = getattr(sys.modules.get(_WANTS_IT), "__spec__", None)
        if fullname == "pandas" and getattr(spec, "_initializing", False):
            raise ModuleNotFoundError("pandas is skipped", name=fullname)
        return None


def start() -> None:
    """Skip it. For processes that are all ours: pyarrow would take a Series for any list."""
    if not any(isinstance(finder, _Skip) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Skip())
