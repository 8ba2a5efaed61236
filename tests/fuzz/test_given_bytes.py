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
from memwal_airflow.operators.outcomes import Verdict, carry_over, judge, summarize
from memwal_airflow.page.answers import Look, Unclear, read_tables
from memwal_airflow.processes.submission import Ended, Submission

from memwal.cli.parse import parse_pairs
from memwal.config import (
    STORAGE_OPTIONS_VARIABLE,
    load_config,
    mask_address,
    read_environment_options,
    resolve_table,
)
from memwal.errors import Usage
from memwal.read.spark_options import parse_settings, write_names
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


def test_storage_options() -> None:
    def check(data: bytes) -> None:
        text = data.decode(errors="replace")
        for act in (
            lambda: read_environment_options({STORAGE_OPTIONS_VARIABLE: text}),
            lambda: parse_pairs([f"key={text}"], "--option"),
        ):
            try:
                options = act()
            except Usage as error:
                assert "hush" not in str(error), "values may be secrets"
            else:
                assert all(isinstance(value, str) for value in options.values())
        mask_address(f"s3://{text}")

    sample = {"aws_region": "eu-central-1", "allow_http": True, "aws_secret_access_key": "hush"}
    attack("storage options", odd_json(sample), check)


def test_options_of_a_spark_read() -> None:
    sample = {"path": "t", "columns": "a,`b,c`", "version": "3", "allow_holes": "true"}

    def check(data: bytes) -> None:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = {"path": "t", "columns": data.decode(errors="replace")}
        if not isinstance(found, dict):
            found = {"path": "t", "columns": str(found)}
        try:
            settings = parse_settings({str(key): str(value) for key, value in found.items()})
        except Usage:
            return
        names = settings.request.columns
        if names:
            again = parse_settings({"path": "t", "columns": write_names(names)})
            assert again.request.columns == names

    attack("Spark read options", odd_json(sample), check)


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
    submission = Submission(folder)

    def check(data: bytes) -> None:
        submission.report_file.write_bytes(data)
        report: Mapping[str, Any] | None = submission.read_report()
        for code in (0, 1, 6, 8, 77):
            found, text = judge(Ended(exit_code=code, why=None), report, "last line")
            assert isinstance(found, Verdict)
            assert len(text) < 3000
        short = summarize(report)
        short = carry_over(short, short["tables"], is_unseen=True)
        assert all(isinstance(table["progress"], bool) for table in short["tables"])
        assert len(json.dumps(short)) < 40_000

    attack("report for Airflow", odd_json(REPORT), check, weight=2)


def test_answers_on_the_page() -> None:
    def check(data: bytes) -> None:
        try:
            tables = read_tables(data, "merge")
        except Unclear:
            return
        assert all(isinstance(name, str) for name in tables)
        assert Look(name="x").error is None

    attack("answer for the page", odd_json(REPORT), check)
