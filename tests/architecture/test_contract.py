"""The import contract (.importlinter): it holds, and it would notice if it did not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = "airflow_plugins"
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"


def lint(folder: Path) -> tuple[int, str]:
    # `memwal` is installed from the checkout; a copy has to come before it.
    done = subprocess.run(
        [LINT_IMPORTS, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{folder / PLUGINS}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_contract_is_kept() -> None:
    code, text = lint(ROOT)
    assert code == 0, text
    assert " 0 broken" in text


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        (
            "memwal/jobs/merge/apply/shard.py",
            "import memwal.store.view",
            "Work is done through ports",
        ),
        ("memwal/format/codec.py", "import memwal.jobs.merge.plan.shard", "Layers"),
        ("memwal/store/wal.py", "import memwal.run.stores", "Layers"),
        ("memwal/rows/fold.py", "import memwal.ports", "Layers"),
        ("memwal/jobs/merge/plan/shard.py", "import lance", "Plans decide"),
        ("memwal/run/engines/choice.py", "import time", "Plans decide"),
        ("memwal/jobs/merge/plan/shard.py", "import google.protobuf", "Plans decide"),
        ("memwal/jobs/merge/apply/shard.py", "import memwal.clock", "Work is done through ports"),
        ("memwal/store/view.py", "import lance", "Lance only"),
        ("memwal/store/objects.py", "import boto3", "boto3 only"),
        ("memwal/jobs/merge/unit.py", "import pyspark.sql", "pyspark only"),
        (
            "memwal/store/view.py",
            "import memwal.format._generated.memwal_pb2",
            "Protobuf never leaves",
        ),
        ("memwal/run/stores.py", "import memwal.testing", "Fakes stay out"),
        (f"{PLUGINS}/memwal_airflow/hook.py", "import memwal.format.layout", "Airflow knows"),
        (f"{PLUGINS}/memwal_airflow/page/app.py", "import lance", "Airflow knows"),
        ("memwal/config.py", "from airflow.sdk import conf", "Airflow only in"),
        ("memwal/run/stores.py", "import memwal_airflow.settings", "Airflow only in"),
    ],
)
def test_a_breach_is_noticed(tmp_path: Path, module: str, line: str, broken: str) -> None:
    for package in ("memwal", PLUGINS):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / ".importlinter", tmp_path)
    with (tmp_path / module).open("a") as file:
        file.write(f"\n{line}\n")

    code, text = lint(tmp_path)

    assert code == 1, text
    assert any(broken in row and "BROKEN" in row for row in text.splitlines()), text
