"""DAG files are cheap to parse: no heavy imports, and little time beyond Airflow's own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.airflow_server import DAGS, EXAMPLES

# The client of Kubernetes, which the other example imports, takes a second alone.
LIGHT = (EXAMPLES / "orders_changes.py", EXAMPLES / "orders_ingest.py")
FILES = [*sorted(DAGS.glob("memwal_*.py")), *LIGHT]
SECONDS_MAX = 1.0
HEAVY = {"lance", "pyspark", "pyarrow", "pandas", "boto3", "datafusion", "py4j"}
OF_REQUESTS = re.compile(r"memwal\.(jobs\.\w+(\.request)?|ingest(\.request)?)")
TRIES = 3
# What a parse adds to a process that has imported what Airflow's own DAG processor has. Each parse
# has a process of its own, forked from that one: importing Airflow takes most of the time.
PARSE = """
import json, multiprocessing, sys, time
import airflow.sdk, airflow.dag_processing.processor
import importlib.util

def parse(file):
    before, started = set(sys.modules), time.process_time()
    spec = importlib.util.spec_from_file_location("dag_file", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seconds = time.process_time() - started
    return {"seconds": seconds, "modules": sorted(set(sys.modules)),
            "own": sorted(m for m in set(sys.modules) - before if m.startswith("memwal"))}

fork = multiprocessing.get_context("fork")
found = {}
for file in sys.argv[2:]:
    for _ in range(int(sys.argv[1])):
        with fork.Pool(1) as pool:
            found.setdefault(file, []).append(pool.apply(parse, (file,)))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def parsed(config: Path) -> dict[str, list[dict[str, Any]]]:
    """What each parse of each file told."""
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(TRIES), *map(str, FILES)],
        env={**os.environ, "AIRFLOW__MEMWAL__CONFIG_FILE": str(config)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("parsing") / "memwal.toml"
    names = ["orders", *(f"t{n}" for n in range(49))]
    file.write_text("".join(f'[tables.{name}]\nuri = "s3://lake/{name}"\n' for name in names))
    return file


def test_there_are_dags_and_an_example() -> None:
    assert len(FILES) >= 9


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dag_file_is_light(file: Path, parsed: dict[str, list[dict[str, Any]]]) -> None:
    tries = parsed[str(file)]
    assert len(tries) == TRIES
    for found in tries:
        assert HEAVY.isdisjoint(found["modules"])
        of_core = {m for m in found["own"] if m.startswith("memwal.")}
        assert "memwal.config" in of_core
        light = {"config", "errors", "identity", "report", "rows", "rows.policy", "text"}
        light |= {"rows.expire", "rows.keys"}
        light |= {"model", "options", "format", "format.layout", "jobs"}
        parts = ("keys", "known_names", "names", "namespaces", "requests", "storage_options")
        light |= {f"config.{name}" for name in parts}
        others = of_core - {f"memwal.{name}" for name in light}
        # Requests, and the packages that they are in.
        assert all(OF_REQUESTS.fullmatch(name) for name in others), others
    # The best of three: this machine may be busy, and the limit is about the file.
    assert min(found["seconds"] for found in tries) < SECONDS_MAX


def test_the_plugin_is_light() -> None:
    code = (
        "import json, sys, memwal_airflow.plugin as p; p.MemWalPlugin; "
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert HEAVY.isdisjoint(json.loads(done.stdout.splitlines()[-1]))
