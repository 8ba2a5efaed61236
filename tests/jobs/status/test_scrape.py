"""How tables stand by a watch's metrics, as it really serves them, and what else may be there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from memwal.errors import StoreUnavailable, Usage
from memwal.jobs.status.plan import parse_condition
from memwal.jobs.status.report import judge_conditions
from memwal.jobs.status.scrape import Sample, parse_metrics, read_tables, report_watch
from memwal.model import TableState
from memwal.run.metrics.start import start_metrics

LAGS = parse_condition("index_lag_generations > 5")
ODD = 'a "quoted"\\name\n{x="y"} 7 ü'


def test_what_a_watch_serves_can_be_read() -> None:
    metrics = start_metrics(shown=True, warn=pytest.fail)
    gauges = TableState(
        looked_at_nanos=1, pending_generations=3, pending_bytes=7,
        index_lag_generations={"by_n": 2, "by_m": 5},
    )  # fmt: skip
    metrics.record_state(ODD, gauges)
    metrics.record_freshness("merged", 3.0)
    samples = parse_metrics(metrics.exposition().decode())
    metrics.close()
    (found,) = read_tables(samples)
    assert (found.table, found.pending_generations, found.pending_bytes) == (ODD, 3, 7)
    assert (found.index_lag_generations, found.reclaimable_bytes) == (5, None)
    assert (found.outcome, found.attention) == ("done", ())


def test_a_table_without_an_index_has_no_lag() -> None:
    samples = parse_metrics('memwal_pending_generations{table="t"} 0\n')
    (found,) = (judge_conditions(t, [LAGS]) for t in read_tables(samples))
    assert (found.index_lag_generations, found.outcome) == (0, "done")


def test_what_a_watch_knows_beyond_a_status_needs_attention() -> None:
    values = {
        "last_look_timestamp_seconds": 0.0,
        "oldest_pending_seconds": 5.0,
        "oldest_unindexed_seconds": 90.0,
        "freshness_target_seconds": 60.0,
        "lease_held_seconds": 7.0,
    }
    samples = [Sample(f"memwal_{name}", {"table": "t"}, n) for name, n in values.items()]
    reason = {"table": "t", "reason": "NotATable"}
    assert read_tables(samples)[0].index_lag_generations is None
    (found,) = read_tables([*samples, Sample("memwal_consecutive_failures", reason, 3.0)])
    assert [told.what for told in found.attention] == [
        "NotATable, 3 times",
        "not looked at yet",
        "late: 1.5 m behind, of 1.0 m",
        "another run has held the lease for 7 s",
    ]
    assert found.oldest_pending_seconds == 5.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# HELP memwal_x y\n# TYPE memwal_x gauge\nother 1\n", []),
        ("memwal_x 1 1700000000000\r\n", [Sample("memwal_x", {}, 1.0)]),
        ('memwal_x{a="}",} 1e3', [Sample("memwal_x", {"a": "}"}, 1000.0)]),
        ("memwal_x one\nmemwal_x NaN\nmemwal_y 2", [Sample("memwal_y", {}, 2.0)]),
        ("memwal_x{ 1\nmemwal_x", []),
    ],
)
def test_lines_are_read_or_left_out(text: str, found: list[Sample]) -> None:
    assert parse_metrics(text) == found


@dataclass
class Answer:
    body: bytes = b'memwal_pending_bytes{table="t"} 1\n'
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


@pytest.mark.integration
def test_what_is_served_is_read_and_what_is_no_watch_is_told() -> None:
    answer = Answer()
    with serve(answer) as place:
        for form in ("{}", "http://{}/"):
            assert report_watch(form.format(place)).exit_code == 0
        late = report_watch(place, [parse_condition("pending_bytes > 0")])
        assert (late.exit_code, late.tables[0].outcome) == (3, "failed")
        answer.body = b"<html>"
        with pytest.raises(Usage, match="has no metrics of a watch"):
            report_watch(place)
        answer.code = 404
        with pytest.raises(StoreUnavailable, match="HTTP Error 404"):
            report_watch(place)
    with pytest.raises(StoreUnavailable) as gone:
        report_watch(place)
    assert str(gone.value) == f"http://{place}/metrics: [Errno 111] Connection refused"


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "http://", "http://[::1", "http://anna:secret@host", "h:0"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(Usage, match="expected http://HOST:PORT") as refused:
        report_watch(address)
    assert "secret" not in str(refused.value)


def test_what_metrics_do_not_tell_is_no_condition() -> None:
    with pytest.raises(Usage, match="metrics don't tell"):
        report_watch("localhost:1", [parse_condition("backup-age > 2d")])
