"""Fixtures for the tests in Airflow's environment: tables, a running Airflow, one in-process.

Airflow reads its settings when it is first imported, so they are in the environment before any
test module is.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if importlib.util.find_spec("airflow") is None:
    pytest.exit("tests/airflow runs in Airflow's environment: make test-airflow", returncode=4)

from jsonschema import Draft202012Validator
from local_airflow.home import JOBS_BIN, ROOT, AirflowHome

from tests.airflow.airflow_server import (
    DAGS,
    EXAMPLES,
    PASSWORDS,
    InProcessAirflow,
    TestAirflow,
    copy_database,
    server_settings,
)
from tests.airflow.stand_in import StandIn
from tests.airflow.tables import TableMaker, Tables
from tests.support.warm_command import script as warm_script

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest_plugins = ["tests.support.durations"]

_FOLDER = Path(tempfile.mkdtemp(prefix="memwal-airflow-tests-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
# `dag.test()` parses and stores all DAGs of the folder each time: there are none in it, and a test
# registers the one that it runs.
_IN_PROCESS = AirflowHome(
    folder=_FOLDER / "home", dags=_FOLDER / "no-dags", config_file=_FOLDER / "memwal.toml"
)
_IN_PROCESS.dags.mkdir()
os.environ.update(_IN_PROCESS.environment(port=0))

_check_schema = cache(lambda text: _CHECK_SCHEMA(json.loads(text)))
_CHECK_SCHEMA = Draft202012Validator.check_schema
# At each look at a param Airflow asks whether its schema is one: a fifth of a run in this process.
Draft202012Validator.check_schema = lambda schema: _check_schema(json.dumps(schema))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # xdist reads the groups in its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Whole Airflows are tried once more; those tests that share one or a browser come last.

    The Airflow works at its own pace for as long as it is there, and no event loop starts beside
    the browser's. Under xdist they are in one process each; so are the tests of any other file.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_shared(item) or item.path.stem))
        if _shared(item) == "airflow_server" or item.path.stem == "test_airflow_demo":
            item.add_marker(pytest.mark.flaky(reruns=1))
    yield
    items.sort(key=lambda item: ("", "browser", "airflow_server").index(_shared(item)))


def _shared(item: pytest.Item) -> str:
    """What it shares with others that is started once."""
    needed = getattr(item, "fixturenames", ())
    return next((name for name in ("airflow_server", "browser") if name in needed), "")


@pytest.fixture(scope="session")
def database_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated Airflow database, to start others from."""
    from airflow.utils.db import initdb

    # An empty file is a database without tables; a process of its own would import Airflow again.
    template = tmp_path_factory.mktemp("template") / "airflow.db"
    template.touch()
    _IN_PROCESS.prepare(PASSWORDS, template)
    initdb()
    copy_database(_IN_PROCESS.database, template)
    return template


@pytest.fixture(scope="session")
def table_maker() -> Iterator[TableMaker]:
    """The process that makes tables."""
    with TableMaker() as maker:
        yield maker


@pytest.fixture(scope="session")
def warm_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The command, without the time that its imports take (tests/support/warm_command.py)."""
    folder = tmp_path_factory.mktemp("warm")
    command, address = folder / "memwal", str(folder / "nursery")
    command.write_text(warm_script(str(JOBS_BIN / "python"), address))
    command.chmod(0o755)
    nursery = subprocess.Popen(
        [JOBS_BIN / "python", "-m", "tests.support.warm_command", address],
        cwd=ROOT,
        stdin=subprocess.PIPE,
    )
    yield command
    nursery.communicate(timeout=60)


@pytest.fixture
def airflow_home(
    database_template: Path,
    table_maker: TableMaker,
    warm_command: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> InProcessAirflow:
    """For `dag.test()`: an empty migrated database, and no tables yet (`.tables.make(...)`)."""
    copy_database(database_template, _IN_PROCESS.database)
    tables = Tables(table_maker, tmp_path / "tables", tmp_path / "memwal.toml")
    monkeypatch.setenv("AIRFLOW__MEMWAL__CONFIG_FILE", str(tables.config_file))
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(warm_command))
    for module in ("operators.base", "triggers.jobs"):
        # No scheduler runs here, which could be slow to learn of a deferral.
        monkeypatch.setattr(f"memwal_airflow.{module}.SETTLE_SECONDS", 0.0)
    return InProcessAirflow(folder=_IN_PROCESS.folder, tables=tables, command=warm_command)


@pytest.fixture
def stand_in(
    airflow_home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StandIn:
    """In memwal's place, in that Airflow."""
    made = StandIn(tmp_path / "stand-in")
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(made.program))
    return made


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    from tests.airflow.page_browser import launched

    with launched() as found:
        yield found


@pytest.fixture(scope="session")
def airflow_server(
    database_template: Path, table_maker: TableMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestAirflow]:
    """A real Airflow with our DAGs, all paused, and the tables `orders` and `events`.

    An example is there, too; it follows `ledger`, as other tests count what is merged of the rest.
    """
    folder = tmp_path_factory.mktemp("airflow")
    dags = folder / "dags"
    dags.mkdir()
    for file in DAGS.glob("*.py"):
        (dags / file.name).symlink_to(file)
    example = (EXAMPLES / "orders_changes.py").read_text()
    (dags / "orders_changes.py").write_text(example.replace('"orders"', '"ledger"'))
    tables = Tables(table_maker, folder / "tables", folder / "memwal.toml")
    tables.make("orders", shards=2, generations=5)
    tables.make("events", generations=2)
    tables.make("ledger", shards=2, stable=True)
    home = AirflowHome(
        folder=folder / "home",
        dags=dags,
        config_file=tables.config_file,
        settings=server_settings(folder / "home"),
    )
    home.prepare(PASSWORDS, database_template)
    with TestAirflow(home, tables) as server:
        yield server
