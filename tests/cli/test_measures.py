"""What commands measure, by OTLP to a collector."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.nursery import run_memwal

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = builders.make_table(tmp_path_factory.mktemp("original") / "t", rows=range(5))
    for number in range(2):
        table.flush(table.shards[0], Put([10 + number, 0], number))
    return table


@pytest.fixture
def table(original: Table, tmp_path: Path) -> Table:
    return original.copied(tmp_path / "t")


@dataclass
class Collector:
    """An OTLP receiver."""

    address: str
    services: set[str] = field(default_factory=set)
    values: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/metrics"
        for told in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            names = {a.key: a.value.string_value for a in told.resource.attributes}
            self.services.add(names["service.name"])
            for scope in told.scope_metrics:
                for metric in scope.metrics:
                    data = metric.sum if metric.WhichOneof("data") == "sum" else metric.gauge
                    for point in data.data_points:
                        labels = sorted((a.key, a.value.string_value) for a in point.attributes)
                        key = metric.name, tuple(value for _, value in labels)
                        self.values[key] = point.as_double or point.as_int


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Nothing on stderr."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()


def test_a_collector_gets_counts(table: Table, collector: Collector) -> None:
    done = run_memwal(
        "merge", table.uri, "--engine", "local", "--json",
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "MEMWAL_RUN_ID": "r1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("telemetry")) == (0, 0), done.stderr
    assert collector.services == {"memwal"}
    assert collector.values["memwal_rows_total", ("merge", "inserted")] == 2
    assert collector.values["memwal_runs_total", ("merge", "done")] == 1
    assert any(name.startswith("lance_") for name, _ in collector.values)


def test_a_collector_that_is_away_costs_a_warning(table: Table) -> None:
    began = time.monotonic()
    done = run_memwal(
        "merge", table.uri, "--engine", "local", "--json",
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
             "OTEL_EXPORTER_OTLP_TIMEOUT": "1"},
    )  # fmt: skip
    assert done.returncode == 0
    assert "warning: telemetry was not sent" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 20


IMPORTED = """
import sys
from memwal.cli import main
try: main(sys.argv[1:])
except SystemExit: pass
print(*sys.modules, file=sys.stderr)
"""


def list_imported(*words: str) -> set[str]:
    """The modules that a command imports, in a process of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    ran = [sys.executable, "-c", IMPORTED, *words]
    done = subprocess.run(ran, capture_output=True, text=True, env=env, check=True)
    return set(done.stderr.split("\n")[-2].split())


def test_a_command_imports_what_it_needs(table: Table) -> None:
    version = list_imported("--version")
    assert {name for name in version if name.startswith("memwal.")} == {
        *("memwal.cli", "memwal.cli.process", "memwal.identity")
    }
    assert not version & {"typer", "pydantic", "rich"}
    merge = list_imported("merge", "--help")
    assert not merge & {"lance", "pyarrow", "numpy", "memwal.model", "memwal.store.objects"}
    assert len([name for name in merge if name.startswith("memwal.")]) <= 70
    listed = list_imported("--help")
    assert not listed & {"lance", "pyarrow", "numpy", "memwal.store.objects"}
    status = list_imported("status", table.uri)
    unasked = ("opentelemetry", "prometheus", "lance.namespace", "lance_namespace", "pandas",
               "pyspark", "memwal.jobs.merge.apply")  # fmt: skip
    assert not [name for name in status if name.startswith(unasked)]
