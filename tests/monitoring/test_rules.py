"""The alerts: each fires when it should and not when it shouldn't, and says what to type next."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
# What YAML takes for a number is a series of values here.
CASES = yaml.load(Path(__file__).with_name("cases.yml").read_text(), yaml.BaseLoader)
ORDERS = {"table": "orders"}


def series_of(case: dict[str, Any]) -> Iterator[dict[str, str]]:
    for series, values in case["series"].items():
        metric, _, given = series.partition("{")
        of_a_watch = {"job": "memwal", **ORDERS} if metric != "up" else {}
        labels = of_a_watch | dict(re.findall(r'(\w+)="([^"]*)"', given))
        for number, each in enumerate(values.split(" | ")):
            names = ", ".join(f'{k}="{v}"' for k, v in {"instance": number, **labels}.items())
            yield {"series": f"{metric}{{{names}}}", "values": each}


def expect(case: dict[str, Any]) -> dict[str, object]:
    fired = []
    rule, labels = RULES[case["alert"]], case.get("labels", ORDERS)
    if "fires" in case:
        told = rule["annotations"]["description"]
        for name, value in labels.items():
            told = told.replace(f"{{{{ $labels.{name} }}}}", value)
        fired = [
            {
                "exp_labels": {**labels, "severity": rule["labels"]["severity"]},
                "exp_annotations": {"summary": case["fires"], "description": told},
            }
        ]
    return {"eval_time": case["at"], "alertname": case["alert"], "exp_alerts": fired}


def promtool(prometheus: Path, *arguments: object) -> str:
    done = subprocess.run(
        [prometheus.with_name("promtool"), *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
def test_prometheus_takes_the_rules(prometheus: Path) -> None:
    told = promtool(prometheus, "check", "rules", "--lint=all", "--lint-fatal", FILE)
    assert f"{len(RULES)} rules found" in told


@pytest.mark.nightly
def test_they_fire_when_they_should(prometheus: Path, tmp_path: Path) -> None:
    file = tmp_path / "cases.yml"
    tests = [
        {
            "name": f"{case['alert']}: {case['name']}",
            "interval": "1m",
            "input_series": [*series_of(case)],
            "alert_rule_test": [expect(case)],
        }
        for case in CASES
    ]
    file.write_text(json.dumps({"rule_files": [str(FILE)], "tests": tests}))
    promtool(prometheus, "test", "rules", file)


def test_each_is_seen_to_fire_and_to_be_silent() -> None:
    fires = {case["alert"] for case in CASES if "fires" in case}
    silent = {case["alert"] for case in CASES if "fires" not in case}
    assert fires == silent == set(RULES)


def test_it_is_of_metrics_that_exist_and_says_what_to_type() -> None:
    for alert, rule in RULES.items():
        found = set(re.findall(r"\bmemwal_\w+", rule["expr"]))
        assert found and found <= {metric.name for metric in METRICS}, alert
        said = rule["annotations"]["description"]
        text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: label[1].upper(), said)
        commands = re.findall(r"`(\w[^`]* [^`]*)`", text)
        assert commands, alert
        for command in commands:
            program, *words = words_of(command)
            assert program in ("memwal", "systemctl", "kubectl")
            assert program != "memwal" or unknown(words) == [], command
