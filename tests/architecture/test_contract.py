"""The import contract (.importlinter): it holds, and it would notice if it did not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract
from importlinter.contracts.protected import ProtectedContract

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = "airflow_plugins"
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"
KINDS = {"layers": LayersContract, "forbidden": ForbiddenContract, "protected": ProtectedContract}

# Who imports what, and the contract that is broken by it.
BREACHES = [
    # No job knows another, and no shared room knows a job.
    ("memwal.jobs.merge.job", "memwal.jobs.garbage.job", "Layers"),
    ("memwal.jobs.status.job", "memwal.jobs.rescue.plan", "Layers"),
    ("memwal.jobs.index_catchup.job", "memwal.jobs.compaction.job", "Layers"),
    ("memwal.jobs.backfill.job", "memwal.jobs.maintain.job", "Layers"),
    ("memwal.jobs.merge.job", "memwal.jobs.maintain.job", "Layers"),
    ("memwal.jobs.merge.show", "memwal.cli.app", "Layers"),
    ("memwal.read.job", "memwal.jobs.merge.job", "Only the Spark data source"),
    ("memwal.read.table", "memwal.ingest.writer", "Only the Spark data source"),
    ("memwal.ingest.job", "memwal.jobs.backfill.job", "Layers"),
    ("memwal.run.stores", "memwal.jobs.merge.job", "Layers"),
    ("memwal.store.tables.view", "memwal.jobs.merge.plan", "Layers"),
    ("memwal.store.shards.wal", "memwal.run.stores", "Layers"),
    ("memwal.format.codec", "memwal.store.shards.wal", "Layers"),
    ("memwal.format.codec", "memwal.ports", "Layers"),
    ("memwal.rows.fold", "memwal.ports", "Layers"),
    ("memwal.sharding.engine", "memwal.rows.fold", "Layers"),
    ("memwal.model", "memwal.errors", "Layers"),
    # Plans are pure; effects are ordered in apply, and done through ports.
    ("memwal.jobs.merge.plan", "lance", "Plans decide"),
    ("memwal.jobs.garbage.plan", "os", "Plans decide"),
    ("memwal.jobs.snapshot.plan", "time", "Plans decide"),
    ("memwal.run.engines.choice", "time", "Plans decide"),
    ("memwal.jobs.merge.apply", "memwal.store.tables.view", "Work is done through ports"),
    ("memwal.jobs.garbage.apply", "memwal.jobs.garbage.store", "Work is done through ports"),
    ("memwal.jobs.snapshot.apply", "memwal.run.stores", "Work is done through ports"),
    ("memwal.jobs.compaction.apply", "lance", "Work is done through ports"),
    ("memwal.jobs.rescue.apply", "memwal.clock", "Work is done through ports"),
    ("memwal.rows.fold", "memwal.clock", "The folds are"),
    ("memwal.sharding.encoding", "random", "Shard values"),
    # Rooms inside a room.
    ("memwal.store.objects.local", "memwal.store.tables.view", "Objects are below"),
    ("memwal.store.objects.s3", "memwal.store.records.lease", "Objects are below"),
    ("memwal.ingest.sources.files", "memwal.ingest.progress.resume", "In an ingest"),
    ("memwal.ingest.values.shape", "memwal.ingest.spark.staging", "In an ingest"),
    ("memwal.ingest.coordinator.core", "memwal.store.shards.writers", "The coordinator knows"),
    ("memwal.ingest.coordinator.ports", "pyarrow", "The coordinator knows"),
    ("memwal.run.process.logs", "memwal.run.tables", "What runs a process"),
    ("memwal.run.engines.pool", "memwal.run.fanout", "What runs a process"),
    ("memwal_airflow.hooks.memwal", "memwal_airflow.operators.base", "Operators and sensors"),
    ("memwal_airflow.processes.process", "memwal_airflow.hooks.command", "Operators and sensors"),
    # A heavy library has one home.
    ("memwal.store.tables.view", "lance", "Lance only"),
    ("memwal.jobs.merge.job", "lance", "Lance only"),
    ("memwal.cli.app", "lance", "Lance only"),
    ("memwal.store.objects.opening", "boto3", "boto3 only"),
    ("memwal.jobs.garbage.store", "botocore", "boto3 only"),
    ("memwal.store.objects.opening", "obstore", "obstore only"),
    ("memwal.jobs.merge.unit", "pyspark", "pyspark only"),
    ("memwal.read.store", "py4j", "pyspark only"),
    ("memwal.store.tables.view", "memwal.format._generated.memwal_pb2", "Protobuf never leaves"),
    ("memwal.jobs.inspect.job", "google", "Protobuf never leaves"),
    ("memwal.sharding.encoding", "datafusion", "DataFusion only"),
    ("memwal.rows.fold", "mmh3", "mmh3 only"),
    ("memwal.run.metrics.sink", "opentelemetry", "OpenTelemetry only"),
    # The shipped fakes, and Airflow.
    ("memwal.run.stores", "memwal.testing", "Fakes stay out"),
    ("memwal.jobs.verify.job", "memwal.testing", "Fakes stay out"),
    ("memwal_airflow.hooks.memwal", "memwal.format.layout", "Airflow knows"),
    ("memwal_airflow.page.app", "lance", "Airflow knows"),
    ("memwal.config", "airflow", "Airflow only in"),
    ("memwal.run.stores", "memwal_airflow.settings", "Airflow only in"),
]


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


def test_a_line_that_breaks_it_fails_the_command(tmp_path: Path) -> None:
    for package in ("memwal", PLUGINS):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / ".importlinter", tmp_path)
    with (tmp_path / "memwal/jobs/merge/job.py").open("a") as file:
        file.write("\nimport memwal.jobs.garbage.job\n")

    code, text = lint(tmp_path)

    assert code == 1, text
    assert [row.split()[0] for row in text.splitlines() if "BROKEN" in row] == ["Layers"]


@cache
def imports() -> grimp.ImportGraph:
    """Who imports whom, as lint-imports reads it."""
    return grimp.build_graph("memwal", "memwal_airflow", include_external_packages=True)


@cache
def contracts() -> list[LayersContract | ForbiddenContract | ProtectedContract]:
    found = read_configuration(str(ROOT / ".importlinter"))
    return [
        KINDS[options["type"]](
            name=options["name"],
            session_options=found["session_options"],
            contract_options={k: v for k, v in options.items() if k not in ("name", "type")},
        )
        for options in found["contracts_options"]
    ]


@pytest.mark.parametrize(("importer", "imported", "broken"), BREACHES)
def test_a_breach_is_noticed(importer: str, imported: str, broken: str) -> None:
    graph = deepcopy(imports())
    assert importer in graph.modules
    if imported not in graph.modules:
        graph.add_module(imported, is_squashed=True)
    graph.add_import(importer=importer, imported=imported)

    (contract,) = [contract for contract in contracts() if contract.name.startswith(broken)]

    assert not contract.check(graph, verbose=False).kept


def test_every_contract_has_its_breach() -> None:
    named = {broken for _, _, broken in BREACHES}
    without = [c.name for c in contracts() if not c.name.startswith(tuple(named))]
    assert without == []
