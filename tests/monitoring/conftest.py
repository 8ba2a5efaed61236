from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """Prometheus's program, where `make prometheus` has put it. promtool lies beside it."""
    unpacked = Path(sys.prefix) / "prometheus" / "usr" / "bin" / "prometheus"
    program = shutil.which(os.environ.get("PROMETHEUS", "prometheus")) or shutil.which(unpacked)
    if program is None:
        pytest.skip("Prometheus is not here: `make prometheus` unpacks it where apt-get does")
    return Path(program).resolve()
