"""`memwal demo`, as an installation runs it that has only the extra `jobs`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

_WITHOUT_SPARK = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(name)
        return None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pyspark" else found(name, *rest)
sys.meta_path.insert(0, Missing())
from memwal.cli import main
main()
"""


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT_SPARK, "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_without_spark_it_runs_in_this_process(tmp_path: Path) -> None:
    done = run_demo(str(tmp_path / "t"))

    assert done.returncode == 0, done.stderr
    assert "6. Before and after" in done.stdout.splitlines()


def test_spark_that_is_asked_for_and_missing_is_told_before_anything_is_made(
    tmp_path: Path,
) -> None:
    done = run_demo(str(tmp_path / "t"), "--engine", "spark")

    assert done.returncode == 7
    assert "pip install 'lance-memwal[spark]'" in done.stderr
    assert not (tmp_path / "t").exists()
