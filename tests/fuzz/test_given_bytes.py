"""Configuration, options and reports: bad ones are told, and stop nothing else."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from memwal_airflow.operators.outcomes import Verdict, assume_moved, judge, summarize
from memwal_airflow.operators.runs import read_report
from memwal_airflow.processes.process import Output

from memwal.config import load_config, resolve_table
from memwal.errors import Usage
from tests.fuzz.attack import attack
from tests.fuzz.damage import damaged, odd_json

CONFIG = b"""
[defaults]
bytes_per_commit_max = 268435456
[tables.orders]
uri = "s3://lake/orders"
engine = "spark"
[tables.orders.storage_options]
aws_region = "eu-central-1"
aws_secret_access_key = "${SECRET}"
[airflow]
merge_schedule = "*/5 * * * *"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_configuration(folder: Path) -> None:
    file = folder / "memwal.toml"

    def check(data: bytes) -> None:
        file.write_bytes(data)
        try:
            config = load_config(str(file), {})
        except Usage as error:
            assert str(file) in str(error)
            return
        for name in config.tables:
            try:
                assert isinstance(resolve_table(name, config, {}, {"SECRET": "x"}).uri, str)
            except Usage as error:
                # A name that a damaged byte makes look misspelt is refused as well.
                assert re.search("environment variable|unknown storage option", str(error))

    deep = st.sampled_from(
        [b"[" * 5000, b"a = " + b"[" * 5000, b"a = " + b"{a=" * 5000, b"a." * 5000]
    )
    attack("configuration", damaged(CONFIG) | deep, check)


# ---- what Airflow reads

SHARD_REPORT = {"shard_id": "s", "outcome": "done", "from_generation": 1, "to_generation": 3}
REPORT = {
    "job": "merge",
    "outcome": "partial",
    "seconds": 1.5,
    "error": None,
    "tables": [
        {
            "table": "orders",
            "outcome": "done",
            "error": "e",
            "version_before": 1,
            "version_after": 2,
            "shards": [SHARD_REPORT],
        },
        {"table": "b", "outcome": "done", "indexes": [{"name": "i", "caught_up": {"s": 3}}]},
        {"table": "c", "outcome": "done", "jobs": [{"shards": [SHARD_REPORT]}]},
    ],
}


def test_reports_of_jobs(folder: Path) -> None:
    file = folder / "report.json"

    def check(data: bytes) -> None:
        file.write_bytes(data)
        report: Mapping[str, Any] | None = read_report(file)
        for code in (0, 1, 6, 8, 77):
            found, text = judge(Output(exit_code=code), report, "last line")
            assert isinstance(found, Verdict)
            assert len(text) < 3000
        short = summarize(report)
        assume_moved(short)
        assert all(isinstance(table["progress"], bool) for table in short["tables"])
        assert len(json.dumps(short)) < 40_000

    attack("report for Airflow", odd_json(REPORT), check, weight=2)
