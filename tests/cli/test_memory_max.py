"""`--memory-max`, from the command line: in processes of their own, as it changes the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import Delete, Put, make_table

pytestmark = pytest.mark.integration


def run(*words: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "memwal", *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.nightly
def test_a_job_stays_within_a_limit_or_says_what_would_fit(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows=range(5))
    shard = table.add_shard()
    table.flush(shard, Put([1], 1), Delete([2]))

    code, found, _ = run("merge", table.uri, "--memory-max", "300MB")
    (refused,) = found["tables"][0]["shards"]
    assert (code, refused["outcome"], refused["commits"]) == (5, "refused", 0)
    assert f"shard {shard}: generation 1" in refused["error"] and "MW-E11" in refused["error"]

    code, found, said = run("read", table.uri, "--memory-max", "100MB")
    assert code == 5 and "MW-E12" in said and "268 MB" in said
    code, found, _ = run("read", table.uri, "--memory-max", "0.3GiB")
    assert found["tables"][0]["num_rows"] == 4
