"""Imports what the commands import. Only the server that processes are forked from imports this."""

import importlib
import pkgutil
import warnings
from contextlib import suppress

import lance  # noqa: F401

for _name in (name for _, name, _ in pkgutil.walk_packages(["memwal"], "memwal.")):
    if "spark" not in _name and not _name.endswith("__main__"):
        with suppress(Exception):
            importlib.import_module(_name)

warnings.filterwarnings("ignore", message="lance is not fork-safe")
