"""Another project's package is imported as `memwal` too: its files over ours are noticed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import memwal

ROOT = Path(__file__).resolve().parents[2]
STRANGER = '"""A storage SDK."""\n\n__version__ = "0.2.1"\n'


@pytest.fixture
def overwritten(tmp_path: Path) -> Path:
    """What pip leaves when it unpacks a package with a `memwal/__init__.py` over ours."""
    shutil.copytree(
        ROOT / "memwal", tmp_path / "memwal", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "memwal" / "__init__.py").write_text(STRANGER)
    return tmp_path


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", ["status", "merge", "--version"])
def test_the_command_does_not_start(overwritten: Path, command: str) -> None:
    code = f"from memwal.cli import main; main([{command!r}, 'somewhere'])"
    done = run(overwritten, code)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "another project" in line
    assert str(overwritten / "memwal" / "__init__.py") in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "module", ["errors", "config", "read.table", "format.codec", "store.shards.wal"]
)
def test_no_module_can_be_imported(overwritten: Path, module: str) -> None:
    done = run(overwritten, f"import memwal.{module}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")
    assert "another project" in done.stderr
    assert run(ROOT, f"import memwal.{module}").returncode == 0


def test_version() -> None:
    done = run(ROOT, "from memwal.cli import main; main(['--version'])")
    assert done.stdout.splitlines() == [
        f"memwal {memwal.__version__} (lance-memwal)",
        f"pylance {version('pylance')}",
        f"pyspark {version('pyspark')}",
    ]
    assert done.returncode == 0
