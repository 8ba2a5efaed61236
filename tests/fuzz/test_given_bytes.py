"""Configuration, options and reports: bad ones are told, and stop nothing else."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from memwal.config import load_config, resolve_table
from memwal.errors import Usage
from tests.fuzz.attack import attack
from tests.fuzz.damage import damaged

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
