"""Checks that an executor has the modules that units need, in the driver's versions.

`find_fault` is pickled by value together with what it calls here, because memwal itself may be
missing on the executor. So this module imports nothing of memwal.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import socket
import sys
from collections.abc import Mapping

NEEDED = {
    "memwal": "lance-memwal",
    "lance": "pylance",
    "pyarrow": "pyarrow",
    "boto3": "boto3",
    "google.protobuf": "protobuf",
    "numpy": "numpy",
    "obstore": "obstore",
    "pydantic": "pydantic",
    "rich": "rich",
    "tenacity": "tenacity",
}
"""The modules that units import, and what to install for them."""

HOW = (
    "Set PYSPARK_PYTHON to a Python of the executors' hosts that has what `pip install "
    "'lance-memwal[jobs]'` brings, or send an environment (memwal submit --archives)"
)

# What Spark says when a Python process could not start.
_FAILURES = (
    (r'Cannot run program "([^"]+)"', "executors can't run {0}, which is to be their Python"),
    (
        r"different version: (\S+) than that in driver: ([\d.]+)",
        "executors run Python {0} and the driver Python {1}: they have to be the same",
    ),
    (r"ModuleNotFoundError: No module named '([^'.]+)", "executors lack {0}"),
    (
        r"Error from python worker:[\s\S]*?\n\s*(\w+Error: [^\n]+)",
        "executors' Python can't start Spark's worker: {0}",
    ),
)


def find_versions() -> dict[str, str]:
    """The versions in this process of the packages that driver and executors must share."""
    spark = str(importlib.import_module("pyspark").__version__)
    return {
        "memwal": str(importlib.import_module("memwal").__version__),
        "pylance": str(importlib.import_module("lance").__version__),
        "Spark": spark_release(spark),
    }


def spark_release(version: str) -> str:
    """The major and minor part of Spark's version: releases that share it are compatible."""
    return ".".join(version.split(".")[:2])


def find_fault(driver: Mapping[str, str]) -> str | None:
    """Why this process can't work for a driver with these versions; None when it can."""
    where = f"the executor on {socket.gethostname()} (Python {sys.executable})"
    if missing := [module for module in NEEDED if not _is_installed(module)]:
        packages = " ".join(NEEDED[module] for module in missing)
        return f"{where} lacks {', '.join(missing)} (pip install {packages})"
    try:
        here = find_versions()
    except ImportError as error:
        return f"{where} can't import {error.name}: {error}"
    for name, version in driver.items():
        if here[name] != version:
            switch = ", or pass --allow-untested-lance" if name == "pylance" else ""
            return (
                f"{where} has {name} {here[name]}, the driver {name} {version}: make them the "
                f"same{switch}"
            )
    return None


def explain_failure(text: str) -> str | None:
    """What is wrong with the executors' Python, from Spark's error text; None for other errors."""
    for pattern, told in _FAILURES:
        if found := re.search(pattern, text):
            return told.format(*found.groups())
    return None


def _is_installed(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except ImportError:  # the parent package is missing
        return False
