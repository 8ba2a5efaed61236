"""What `top` reads: a watch's metrics, as it really serves them, and what else may be there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from memwal.clock import SystemClock
from memwal.config import ResolvedTable, Settings
from memwal.errors import StoreUnavailable, Usage
from memwal.jobs.top.apply import Scrape
from memwal.jobs.top.plan import Sample, read_rows, sum_samples
from memwal.jobs.top.store import LeasedLooks, MetricsReader, parse_metrics
from memwal.model import TableGauges
from memwal.run.metrics.sink import count_requests
from memwal.run.metrics.start import start_metrics
from tests.support import builders
from tests.support.builders import Put

ODD = 'a "quoted"\\name\n{x="y"} 7 ü'


def test_what_a_watch_serves_can_be_read() -> None:
    metrics = start_metrics(shown=True, warn=pytest.fail)
    gauges = TableGauges(
        looked_at_nanos=1, pending_generations=3, pending_bytes=7,
        index_lag_generations={"by_n": 2},
    )  # fmt: skip
    metrics.record_gauges(ODD, gauges)
    metrics.record_freshness("merged", 3.0)
    metrics.add(count_requests({"get": 5, "list": 2}))
    samples = parse_metrics(metrics.exposition().decode())
    metrics.close()
    (row,) = read_rows(samples)
    assert (row.table, row.pending_generations, row.pending_bytes) == (ODD, 3, 7)
    assert row.index_lag_generations == 2
    assert sum_samples(samples, "memwal_requests_total") == {"get": 5, "list": 2}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# HELP memwal_x y\n# TYPE memwal_x gauge\nother 1\n", []),
        ("memwal_x 1 1700000000000\r\n", [Sample("memwal_x", {}, 1.0)]),
        ('memwal_x{a="}",} 1e3', [Sample("memwal_x", {"a": "}"}, 1000.0)]),
        ("memwal_x one\nmemwal_y 2", [Sample("memwal_y", {}, 2.0)]),
        ("memwal_x{ 1\nmemwal_x", []),
    ],
)
def test_lines_are_read_or_left_out(text: str, found: list[Sample]) -> None:
    assert parse_metrics(text) == found


@dataclass
class Answer:
    body: bytes = b"memwal_x 1\n"
    code: int = 200


@contextmanager
def serve(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/metrics"
            self.send_response(answer.code)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def read(address: str) -> Scrape:
    reader = MetricsReader(address)
    reader.start()
    for thread in threading.enumerate():
        if thread.name == "memwal-metrics-look":
            thread.join(20)
    (found,) = reader.collect()
    return found


@pytest.mark.integration
def test_what_is_served_is_read_and_what_is_no_watch_is_told() -> None:
    answer = Answer()
    with serve(answer) as place:
        for form in ("{}", "http://{}/"):
            assert read(form.format(place)) == Scrape([Sample("memwal_x", {}, 1.0)])
        answer.body = b"<html>"
        error = read(place).error
        assert isinstance(error, Usage) and "has no metrics of a watch" in str(error)
        answer.code = 404
        error = read(place).error
        assert isinstance(error, StoreUnavailable) and "HTTP Error 404" in str(error)
    assert str(read(place).error) == f"http://{place}/metrics: [Errno 111] Connection refused"


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "http://", "http://[::1", "http://anna:secret@host", "h:0"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(Usage, match="expected http://HOST:PORT") as refused:
        MetricsReader(address)
    assert "secret" not in str(refused.value)


@pytest.mark.integration
def test_a_look_has_the_lease_and_its_requests(tmp_path: Path) -> None:
    made = builders.make_table(tmp_path / "t", rows=range(5), shards=1)
    made.flush(made.shards[0], Put([1], 1))
    table = ResolvedTable(name="t", uri=made.uri, settings=Settings(), storage_options={})
    looks = LeasedLooks(SystemClock())
    looks.look(table)
    assert looks.leases == {"t": None}
    claim = made.stores.leases.acquire("merge")
    looks.look(table)
    assert looks.leases == {"t": claim}
    made.stores.leases.release(claim)
    looks.look(table)
    found = looks.leases["t"]
    assert found is not None and found.released
