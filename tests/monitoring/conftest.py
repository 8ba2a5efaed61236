from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def find_prometheus() -> Path | str:
    """Prometheus's program, or why there is none. Fetched where it can be."""
    done = subprocess.run(
        ["bash", "scripts/prometheus.sh"],
        cwd=ROOT,
        env={**os.environ, "VENV": sys.prefix},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    return Path(done.stdout.strip()) if done.returncode == 0 else done.stderr


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The program. promtool lies beside it."""
    found = find_prometheus()
    if isinstance(found, str):
        pytest.skip(found)
    return found
