"""Every Python of `make test-next` starts with this: the installed pylance counts as tested.

It is no part of memwal, where `--allow-untested-lance` has to be given to each command.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from typing import Any

_MODULE = "memwal.run.stores"


class _Finder:
    """Finds the module that knows the tested majors, and adds the installed one as it is loaded."""

    @staticmethod
    def find_spec(name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == _MODULE else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_add(module: Any) -> None:
            load(module)
            major = int(version("pylance").split(".")[0])
            module.TESTED_LANCE_MAJORS = tuple(sorted({*module.TESTED_LANCE_MAJORS, major}))

        spec.loader.exec_module = load_and_add  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
