"""The unit, the Deployment and the dashboard: they would start, stop in time, and be taken."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

import memwal
from memwal.config import WatchSettings, load_config
from memwal.errors import EXIT_CORRUPTION, LASTING_EXITS
from memwal.jobs.watch.metrics import Pulse, serve
from memwal.run.metrics.sink import NO_METRICS
from memwal.testing.objects import ManualClock
from tests.architecture.test_pages import blocks, unknown
from tests.monitoring.test_rules import FILE as RULES_FILE
from tests.monitoring.test_rules import promtool
from tests.support.containerfile import last

FOLDER = Path(memwal.__path__[0]) / "monitoring"
PAGE = "docs/operate/watch.md"
UNITS = {"none", "s", "bytes", "ops", "rowsps", "reqps", "currencyUSD"}
STOP_SECONDS_MAX = WatchSettings().stop_seconds_max
(UNIT,) = blocks(PAGE, "ini")
SCRAPE, OBJECTS = blocks(PAGE, "yaml")


def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT)
    return parser["Service"]


def deployment() -> tuple[dict[str, Any], dict[str, Any]]:
    config, deployment = yaml.safe_load_all(OBJECTS)
    return config, deployment["spec"]["template"]["spec"]


def container() -> dict[str, Any]:
    (found,) = deployment()[1]["containers"]
    return found  # type: ignore[no-any-return]


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "memwal-watch.service"
    installed = str(Path(sys.prefix) / "bin" / "memwal")
    file.write_text(UNIT.replace("/opt/memwal/bin/memwal", installed))
    done = subprocess.run(
        ["systemd-analyze", "verify", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_commands_have_options_that_exist() -> None:
    started = container()["command"] + container()["args"]
    for command in (shlex.split(unit()["ExecStart"]), started):
        assert Path(command[0]).name == "memwal" and command[1] == "watch"
        assert unknown(command[1:]) == []


def test_they_are_given_the_time_that_a_stop_takes() -> None:
    assert int(unit()["TimeoutStopSec"]) >= STOP_SECONDS_MAX + 15
    assert deployment()[1]["terminationGracePeriodSeconds"] >= STOP_SECONDS_MAX + 15
    told = set(re.findall(r"stop_seconds_max \((\d+)\)", UNIT + OBJECTS))
    assert told == {f"{STOP_SECONDS_MAX:g}"}


def test_what_no_restart_mends_is_not_started_again() -> None:
    # Corruption is in a table, and others go on; it comes from a bounded watch only.
    codes = {int(code) for code in unit()["RestartPreventExitStatus"].split()}
    assert codes == LASTING_EXITS - {EXIT_CORRUPTION}


@pytest.mark.integration
def test_probes_ask_what_is_answered() -> None:
    watch = container()
    (port,) = watch["ports"]
    assert watch["args"][watch["args"].index("--metrics-port") + 1] == str(port["containerPort"])
    pulse = Pulse(ManualClock(), 5)
    pulse.turn()
    with serve(NO_METRICS.exposition, pulse, port=0) as url:
        for probe in ("startupProbe", "livenessProbe"):
            asked = watch[probe]["httpGet"]
            assert asked["port"] == port["name"]
            with urlopen(url + asked["path"]) as answer:
                assert answer.status == 200


def test_the_configuration_is_one(tmp_path: Path) -> None:
    file = tmp_path / "memwal.toml"
    file.write_text(deployment()[0]["data"]["memwal.toml"])
    config = load_config(str(file))
    assert config.tables and config.defaults.freshness


def test_volumes_and_mounts_go_together() -> None:
    config, pod = deployment()
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
    file = container()["command"][-1]
    assert file == f"{mounts['config']}/{next(iter(config['data']))}"


def test_they_run_what_the_image_has() -> None:
    spec, watch = deployment()[1], container()
    assert watch["command"][:1] == json.loads(last("memwal", "ENTRYPOINT"))
    assert shlex.split(unit()["ExecStart"])[0] == watch["command"][0]
    who = spec["securityContext"]
    assert f"{who['runAsUser']}:{who['runAsGroup']}" == last("memwal", "USER")
    mounts = {mount["mountPath"] for mount in watch["volumeMounts"]}
    assert mounts == {last("memwal", "WORKDIR"), "/tmp"}
    assert "HOME=/tmp " in last("memwal", "ENV")
    assert watch["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.nightly
def test_prometheus_takes_its_configuration(prometheus: Path, tmp_path: Path) -> None:
    shutil.copy(RULES_FILE, tmp_path)
    file = tmp_path / "prometheus.yml"
    file.write_text(SCRAPE)
    assert "rules found" in promtool(prometheus, "check", "config", file)


def test_the_package_brings_its_files() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {"rules.yml", "dashboard.json"}


def test_grafana_can_take_it() -> None:
    """What Grafana needs of a dashboard, and what one by hand gets wrong."""
    text = (FOLDER / "dashboard.json").read_text()
    dashboard = json.loads(text)
    assert dashboard["schemaVersion"] >= 36 and dashboard["uid"] and "id" not in dashboard
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] in ("stat", "timeseries")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w+)", text))
    assert used == variables
