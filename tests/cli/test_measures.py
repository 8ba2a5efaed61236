"""What commands measure: into a file, and by OTLP to a collector."""

from __future__ import annotations

import os
import stat
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
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from memwal.cli.measures import Measures
from memwal.errors import Usage
from memwal.report import JobReport
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
    spans: list[Span] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    values: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for traces in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in traces.scope_spans for span in scope.spans]
            return
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


def test_files_of_status_and_merge(table: Table, tmp_path: Path) -> None:
    before, after = tmp_path / "status.prom", tmp_path / "merge.prom"
    old = os.umask(0o077)
    try:
        assert run_memwal("status", table.uri, "--metrics-file", before).returncode == 0
        for _ in range(2):
            done = run_memwal(
                "merge", table.uri, "--engine", "local", "--metrics-file", after, "--json"
            )
            assert done.returncode == 0, done.stderr
    finally:
        os.umask(old)
    assert f'memwal_pending_generations{{table="{table.uri}"}} 2.0\n' in before.read_text()
    assert 'memwal_runs_total{job="status",outcome="done"} 1.0\n' in before.read_text()
    text = after.read_text()
    assert 'memwal_rows_total{job="merge",kind="inserted"} 2.0\n' in text
    assert 'memwal_runs_total{job="merge",outcome="done"} 1.0\n' in text
    assert 'memwal_runs_total{job="merge",outcome="nothing_to_do"} 1.0\n' in text
    assert stat.S_IMODE(after.stat().st_mode) == 0o644, "its reader is another user"
    assert {file.name for file in tmp_path.iterdir()} == {"t", "status.prom", "merge.prom"}


def test_a_run_that_fails_is_in_the_file_and_a_wrong_place_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "m.prom"
    assert run_memwal("merge", tmp_path / "none", "--metrics-file", file).returncode == 2
    assert 'memwal_runs_total{job="merge",outcome="failed"} 1.0\n' in file.read_text()
    for place in (tmp_path, tmp_path / "none" / "m.prom"):
        done = run_memwal("merge", tmp_path / "t", "--metrics-file", place)
        assert done.returncode == 2
        assert "--metrics-file" in done.stderr


def test_what_can_t_be_written_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    file = folder / "m.prom"
    file.write_text("old\n")
    measures = Measures(str(file), warn=pytest.fail)
    measures.begin()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    problem = measures.end(JobReport(job="merge", outcome="done"))
    assert problem == "the metrics can't be written: [Errno 28] No space left on device"
    assert [(f.name, f.read_text()) for f in folder.iterdir()] == [("m.prom", "old\n")]


def test_a_collector_gets_counts_and_spans(table: Table, collector: Collector) -> None:
    done = run_memwal(
        "merge", table.uri, "--engine", "local", "--json",
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "MEMWAL_RUN_ID": "r1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("telemetry")) == (0, 0), done.stderr
    assert collector.services == {"memwal"}
    assert collector.values["memwal_rows_total", ("merge", "inserted")] == 2
    assert collector.values["memwal_runs_total", ("merge", "done")] == 1
    assert any(name.startswith("lance_") for name, _ in collector.values)
    by_name = {span.name: span for span in collector.spans}
    job = by_name["memwal merge"]
    assert not job.parent_span_id
    facts = {a.key: a.value for a in by_name["memwal merge table"].attributes}
    assert facts["memwal.run_id"].string_value == "r1"
    assert facts["memwal.generations"].int_value == 2
    assert facts["memwal.version_after"].int_value == int(table.dataset.version)
    commit = by_name["memwal merge commit"]
    assert {s.parent_span_id for s in (commit, by_name["memwal merge table"])} == {job.span_id}
    rows = {a.key: a.value.int_value for a in commit.attributes}
    assert (rows["memwal.rows_inserted"], rows["memwal.rows_updated"]) == (2, 1)


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


def test_a_place_is_looked_at_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="that is a folder"):
        Measures(str(tmp_path), warn=pytest.fail).begin()


def test_no_telemetry_or_namespace_is_imported_unless_it_is_asked_for(table: Table) -> None:
    code = (
        "import sys\nfrom memwal.cli import main\n"
        "unasked = ('opentelemetry', 'prometheus', 'lance.namespace', 'lance_namespace')\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "sys.exit(any(name.startswith(unasked) for name in sys.modules))"
    )
    words = [sys.executable, "-c", code, "status", table.uri]
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    assert subprocess.run(words, capture_output=True, env=env).returncode == 0
