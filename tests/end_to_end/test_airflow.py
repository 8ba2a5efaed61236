"""The tests of DAGs, provider and page run in Airflow's environment: a pytest of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.sampling import FULL

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.e2e
@pytest.mark.timeout(3600)
def test_airflows_suite() -> None:
    python = ROOT / os.environ.get("VENV_AIRFLOW", ".venv-airflow") / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} is missing: make setup")
    level = [] if FULL else ["-m", "not nightly"]
    # Of this process's environment, nothing that pytest or its workers left there.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "--durations=5", "tests/airflow", *level],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)

    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
