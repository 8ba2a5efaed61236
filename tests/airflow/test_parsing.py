"""DAG files and plugin are cheap to load: nothing heavy, and of memwal what says what jobs are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from memwal.errors import JOBS_MODULES
from tests.airflow.airflow_server import DAGS, EXAMPLES

pytestmark = pytest.mark.integration

FILES = [*sorted(DAGS.glob("*.py")), *sorted(EXAMPLES.glob("*.py"))]
# Airflow itself has these two.
ABSENT = sorted(JOBS_MODULES - {"google", "tenacity"})
LIGHT = re.compile(
    r"memwal(\.(errors|identity|jobs|model|options|report|text|rows(\.(conversions|expire|keys|policy))?"
    r"|format(\.layout)?|config(\.(keys|known_names|names|namespaces|requests|storage_options))?"
    # Requests, and the packages that they are in.
    r"|jobs\.\w+(\.request)?|ingest(\.request)?))?"
)
# As an Airflow process does it, where nothing is installed that only jobs need.
LOAD = f"""
import importlib, json, pkgutil, runpy, sys
sys.modules.update(dict.fromkeys({ABSENT}))
import airflow.sdk, airflow.dag_processing.processor, airflow.plugins_manager as manager
told, before = {{}}, set(sys.modules)
def tell(name):
    told[name] = sorted(set(sys.modules) - before)
from memwal_airflow.plugin import MemWalPlugin
assert manager.is_valid_plugin(MemWalPlugin)
tell("plugin")
for file in sys.argv[1:]:
    runpy.run_path(file)
tell("dags")
import memwal_airflow
for module in pkgutil.walk_packages(memwal_airflow.__path__, "memwal_airflow."):
    importlib.import_module(module.name)
tell("all")
print(json.dumps(told))
"""


@pytest.mark.nightly
def test_plugin_dag_files_and_provider_are_light(tmp_path: Path) -> None:
    names = ["orders", *(f"t{n}" for n in range(49))]
    config = tmp_path / "memwal.toml"
    config.write_text("".join(f'[tables.{name}]\nuri = "s3://lake/{name}"\n' for name in names))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, FILES)],
        env={**os.environ, "AIRFLOW__MEMWAL__CONFIG_FILE": str(config)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    slow = ("memwal_airflow.page.", "fastapi", "airflow.api_fastapi", "pydantic", "memwal.")
    assert [name for name in told["plugin"] if name.startswith(slow)] == []
    ours = [name for name in told["dags"] if name.partition(".")[0] == "memwal"]
    assert {"memwal.config", "memwal.jobs.garbage.request"} <= set(ours)
    assert [name for name in ours if not LIGHT.fullmatch(name)] == []
    heavy = {"numpy", "pandas", "pyarrow", "kubernetes"}
    assert heavy.isdisjoint(told["dags"])
    assert {"memwal_airflow.page.feed", "memwal_airflow.page.app"} <= set(told["all"])
