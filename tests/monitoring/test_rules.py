"""The alerts: each fires when it should and not when it shouldn't, and says what to type next."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

import memwal
from memwal.run.metrics.telemetry import METRICS
from tests.architecture.test_pages import unknown, words_of

FILE = Path(memwal.__file__).parent / "monitoring" / "rules.yml"
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load(FILE.read_text())["groups"]
    for rule in group["rules"]
}
GIB = 1024**3
PENDING = "memwal_oldest_pending_seconds"
UNINDEXED = "memwal_oldest_unindexed_seconds"
LAG = "memwal_index_lag_generations"
LOOK = "memwal_last_look_timestamp_seconds"
AIM = "memwal_freshness_target_seconds"
FAILURES = "memwal_consecutive_failures"
CURSOR_AGE, CURSOR_LAG = "memwal_cursor_age_seconds", "memwal_cursor_lag_versions"
BACKUP = "memwal_last_backup_timestamp_seconds"


def gauges(metric: str, *values: str, **labels: str) -> dict[str, str]:
    """A series for each of several watches, with a value a minute."""
    names = ", ".join(
        f'{k}="{v}"' for k, v in ({"job": "memwal", "table": "orders"} | labels).items()
    )
    return {f'{metric}{{instance="{n}", {names}}}': value for n, value in enumerate(values)}


TARGET = gauges(AIM, "60x2000", "60x2000")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series, and what the alert is at a time. Without a summary it is silent."""

    alert: str
    name: str
    series: Mapping[str, str]
    at: str
    summary: str | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: {"table": "orders"})


CASES = [
    Case(
        alert="MemwalTableLate",
        name="one of two watches says so",
        series=TARGET | gauges(PENDING, "0x20", "0+60x20"),
        at="6m",
        summary="orders is late: rows wait 6m 0s to be merged",
    ),
    Case(
        alert="MemwalTableLate",
        name="under twice the target",
        series=TARGET | gauges(PENDING, "119x20", "119x20"),
        at="20m",
    ),
    Case(
        alert="MemwalTableLate",
        name="not for long",
        series=TARGET | gauges(PENDING, "0 0 0 130 140 0 0 130 0"),
        at="7m",
    ),
    Case(
        alert="MemwalTableLate",
        name="nobody has promised anything",
        series=gauges(PENDING, "86400x20"),
        at="20m",
    ),
    Case(
        alert="MemwalIndexLag",
        name="the index that is behind, not the one beside it",
        series=TARGET
        | gauges(LAG, "7x20", index="text")
        | gauges(LAG, "0x20", index="id")
        | gauges(UNINDEXED, "0+60x20"),
        at="10m",
        summary="orders: index text is 7 generations behind",
        labels={"table": "orders", "index": "text"},
    ),
    Case(
        alert="MemwalBackupOld",
        name="the newest backup is from three days ago",
        series=gauges(BACKUP, "0x8000"),
        at="3d",
        summary="orders: no backup of it is newer than two days",
    ),
    Case(
        alert="MemwalBackupOld",
        name="one of two watches can't read the new one",
        series=gauges(BACKUP, "0x8000", "250000x8000"),
        at="3d",
    ),
    Case(
        alert="MemwalCursorLags",
        name="its consumer died, and another goes on",
        series=gauges(AIM, "60x8000")
        | gauges(CURSOR_AGE, "0+60x8000", cursor="mart")
        | gauges(CURSOR_LAG, "3x8000", cursor="mart")
        | gauges(CURSOR_AGE, "60x8000", cursor="other")
        | gauges(CURSOR_LAG, "1x8000", cursor="other")
        | gauges(CURSOR_AGE, "0x8000", cursor="mart", job="node")
        | gauges(CURSOR_LAG, "1x8000", cursor="mart", job="node"),
        at="3d",
        summary="orders: nobody has moved cursor mart for 3d 0h 0m 0s",
        labels={"table": "orders", "cursor": "mart"},
    ),
    Case(
        alert="MemwalCursorLags",
        name="nothing is new, or one of two watches can't read where it is now",
        series=gauges(AIM, "60x8000", "60x8000")
        | gauges(CURSOR_AGE, "0+60x8000", cursor="idle")
        | gauges(CURSOR_LAG, "0x8000", cursor="idle")
        | gauges(CURSOR_AGE, "0+60x8000", "60x8000", cursor="mart")
        | gauges(CURSOR_LAG, "9x8000", "1x8000", cursor="mart"),
        at="3d",
    ),
    Case(
        alert="MemwalTableLate",
        name="a file that a status left behind grows old",
        series=TARGET | gauges(PENDING, "0x200", "0x200") | gauges(PENDING, "500x200", job="node"),
        at="200m",
    ),
    Case(
        alert="MemwalIndexLag",
        name="it catches up in time",
        series=TARGET | gauges(LAG, "7x20", index="text") | gauges(UNINDEXED, "110x20"),
        at="20m",
    ),
    Case(
        alert="MemwalRoundsFail",
        name="several in a row",
        series=gauges(FAILURES, "1 2 3 4 5", reason="Corruption"),
        at="4m",
        summary="orders: 5 rounds failed one after the other (Corruption)",
        labels={"table": "orders", "reason": "Corruption"},
    ),
    Case(
        alert="MemwalRoundsFail",
        name="it works again",
        series=gauges(FAILURES, "3 4 stale stale stale", reason="LostRace"),
        at="4m",
    ),
    Case(
        alert="MemwalRoundsFail",
        name="another has the lease",
        series=gauges(FAILURES, "9x20", reason="LeaseHeld"),
        at="20m",
    ),
    Case(
        alert="MemwalLeaseHeldTooLong",
        name="more than half an hour",
        series=gauges("memwal_lease_held_seconds", "0+60x90"),
        at="35m",
        summary="orders: another run has held its lease for 35m 0s and committed nothing",
    ),
    Case(
        alert="MemwalLeaseHeldTooLong",
        name="runs take turns",
        series=gauges("memwal_lease_held_seconds", "0+60x28 stale 0+60x28"),
        at="58m",
    ),
    Case(
        alert="MemwalShardAbandoned",
        name="writers died",
        series=gauges("memwal_abandoned_shards", "0x2 2x20"),
        at="10m",
        summary="orders: 2 shards have rows that no writer will flush",
    ),
    Case(
        alert="MemwalShardAbandoned",
        name="they were rescued",
        series=gauges("memwal_abandoned_shards", "0x2 2x3 0x20"),
        at="10m",
    ),
    Case(
        alert="MemwalReclaimableBytes",
        name="for a day",
        series=gauges("memwal_reclaimable_bytes", f"{20 * GIB}x1600"),
        at="25h",
        summary="orders: 20GiB that nothing needs, for a day",
    ),
    Case(
        alert="MemwalReclaimableBytes",
        name="somebody collects",
        series=gauges("memwal_reclaimable_bytes", f"{20 * GIB}x1200 {GIB}x400"),
        at="25h",
    ),
    Case(
        alert="MemwalTableUnseen",
        name="looks at one table fail, others go on",
        series=TARGET
        | gauges(LOOK, "0+60x5 300x20", "0+60x4 240x20")
        | gauges(AIM, "60x40", table="events")
        | gauges(LOOK, "0+60x40", table="events"),
        at="16m",
        summary="orders: no watch has looked at it for 11m 0s",
    ),
    Case(
        alert="MemwalTableUnseen",
        name="the watch of this table is gone, another is there",
        series=gauges(AIM, "60x5 stale")
        | gauges(LOOK, "0+60x5 stale")
        | gauges(AIM, "60x60", table="events"),
        at="30m",
        summary="orders: no watch has looked at it for 25m 0s",
    ),
    Case(
        alert="MemwalTableUnseen",
        name="one of two watches hangs",
        series=TARGET | gauges(LOOK, "0+60x40", "0x40"),
        at="40m",
    ),
    Case(
        alert="MemwalTableUnseen",
        name="an idle table is looked at seldom",
        series=gauges(AIM, "600x40") | gauges(LOOK, "0x30"),
        at="30m",
    ),
    Case(
        alert="MemwalTableUnseen",
        name="somebody else looks now and then",
        series=gauges(AIM, "60x5 stale")
        | gauges(LOOK, "0+60x5 stale")
        | gauges(LOOK, "0+60x60", job="node"),
        at="30m",
        summary="orders: no watch has looked at it for 25m 0s",
    ),
    Case(
        alert="MemwalTableNeverSeen",
        name="no rights to read it",
        series=gauges(LOOK, "0x20", "0x20"),
        at="6m",
        summary="orders: no look at it has succeeded since the watch was started",
    ),
    Case(
        alert="MemwalTableNeverSeen",
        name="one of two watches was just started",
        series=gauges(LOOK, "0x20", "60+60x20"),
        at="20m",
    ),
    Case(
        alert="MemwalWatchGone",
        name="nobody is there",
        series={"up": "1x20"},
        at="6m",
        summary="No memwal watch is running, or Prometheus does not reach it",
        labels={},
    ),
    Case(
        alert="MemwalWatchGone",
        name="it is started again",
        series=gauges(AIM, "60x3 stale _x2 60x20"),
        at="8m",
    ),
]


def describe(case: Case) -> str:
    text: str = RULES[case.alert]["annotations"]["description"]
    for name, value in case.labels.items():
        text = text.replace(f"{{{{ $labels.{name} }}}}", value)
    assert "{{" not in text
    return text


def expect(case: Case) -> dict[str, object]:
    fired = []
    if case.summary is not None:
        labels = {**case.labels, "severity": RULES[case.alert]["labels"]["severity"]}
        annotations = {"summary": case.summary, "description": describe(case)}
        fired = [{"exp_labels": labels, "exp_annotations": annotations}]
    return {"eval_time": case.at, "alertname": case.alert, "exp_alerts": fired}


def promtool(prometheus: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [prometheus.with_name("promtool"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_prometheus_takes_the_rules(prometheus: Path) -> None:
    done = promtool(prometheus, "check", "rules", "--lint=all", "--lint-fatal", FILE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


def test_they_fire_when_they_should(prometheus: Path, tmp_path: Path) -> None:
    file = tmp_path / "cases.yml"
    tests = [
        {
            "name": f"{case.alert}: {case.name}",
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in case.series.items()],
            "alert_rule_test": [expect(case)],
        }
        for case in CASES
    ]
    file.write_text(json.dumps({"rule_files": [str(FILE)], "tests": tests}))
    done = promtool(prometheus, "test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_is_seen_to_fire_and_to_be_silent() -> None:
    fires = {case.alert for case in CASES if case.summary is not None}
    silent = {case.alert for case in CASES if case.summary is None}
    assert fires == silent == set(RULES)


@pytest.mark.parametrize("alert", RULES)
def test_it_is_of_metrics_that_exist(alert: str) -> None:
    found = set(re.findall(r"\bmemwal_\w+", RULES[alert]["expr"]))
    assert found and found <= {metric.name for metric in METRICS}


@pytest.mark.parametrize("alert", RULES)
def test_it_says_what_to_type(alert: str) -> None:
    said = RULES[alert]["annotations"]["description"]
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: label[1].upper(), said)
    commands = re.findall(r"`(\w[^`]* [^`]*)`", text)
    assert commands
    for command in commands:
        program, *words = words_of(command)
        assert program in ("memwal", "systemctl", "kubectl")
        assert program != "memwal" or unknown(words) == [], command
