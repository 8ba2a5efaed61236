"""The package as Airflow finds it: installed, in the plugins folder, and both."""

from __future__ import annotations

import email
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.message import Message
from importlib.metadata import distribution, entry_points
from pathlib import Path
from typing import Any

import jsonschema
import memwal_airflow
import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Asset, BaseHook, BaseOperator, BaseSensorOperator
from airflow.triggers.base import BaseTrigger
from local_airflow.home import ROOT
from memwal_airflow.operators.base import MemWalJobOperator
from memwal_airflow.provider import get_provider_info

from scripts.dist import build_project
from tests.airflow.airflow_server import InProcessAirflow

PROJECT = ROOT / "airflow_plugins"
SECONDS = "315532800"  # of 1980, the first that a wheel can tell
PAGES = {"docs/operate/trouble.md", "docs/concepts.md"}
PACKED = {"memwal/trouble.md", "memwal/concepts.md"}
BESIDE = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
CACHES = shutil.ignore_patterns("__pycache__")

# Loads the plugins as an Airflow process does, and tells what came of it.
LOOK = """
import json, sys
import airflow.settings
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
folder = airflow.settings.PLUGINS_FOLDER
print("TOLD " + json.dumps({
    "plugins": [[p.name, str(p.source)] for p in plugins if p.name == "memwal"],
    "errors": errors,
    "modules": [name for name, module in sys.modules.items()
                if (getattr(module, "__file__", None) or "").startswith(folder)],
    "heavy": [n for n in ("lance", "pyspark", "pyarrow", "numpy") if n in sys.modules],
}))
"""


def load_plugins(folder: Path, packages: Path | None = None) -> dict[str, Any]:
    """With `folder` as the plugins folder, and `packages` in place of what is installed."""
    python = [sys.executable, *(["-S"] if packages else []), "-c", LOOK]
    variables = {**os.environ, "AIRFLOW__CORE__PLUGINS_FOLDER": str(folder)}
    if packages:
        variables["PYTHONPATH"] = f"{packages}:{ROOT}"
    done = subprocess.run(
        python, env=variables, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"^TOLD (.*)$", done.stdout, re.M)
    assert found, done.stdout
    told: dict[str, Any] = json.loads(found[1])
    return told


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """All that is installed here, but for our provider."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "airflow_provider_lance_memwal" not in entry.name:
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def folder(tmp_path: Path, airflow_home: InProcessAirflow) -> Path:
    """A copy of ours, as somebody would put it on a server."""
    copy = tmp_path / "plugins"
    shutil.copytree(PROJECT, copy, ignore=CACHES)
    return copy


@pytest.mark.nightly
def test_in_the_plugins_folder_only_the_plugin_is_run(folder: Path, packages: Path) -> None:
    told = load_plugins(folder, packages)

    assert told["plugins"] == [["memwal", "$PLUGINS_FOLDER/memwal_plugin.py"]]
    assert told["errors"] == {}
    loaded = {name for name in told["modules"] if "." not in name}
    assert loaded == {"memwal_plugin", "memwal_airflow"}
    assert told["heavy"] == []


def test_entry_points() -> None:
    ours = {
        (entry.group, entry.value): entry
        for group in ("airflow.plugins", "apache_airflow_provider")
        for entry in entry_points(group=group)
        if entry.dist and entry.dist.name == "airflow-provider-lance-memwal"
    }
    assert ours.keys() == {
        ("airflow.plugins", "memwal_airflow.plugin:MemWalPlugin"),
        ("apache_airflow_provider", "memwal_airflow.provider:get_provider_info"),
    }
    assert all(entry.load() for entry in ours.values())


def test_the_provider_describes_all_of_itself() -> None:
    """By the schema that Airflow ships, and by what is there."""
    import airflow

    info = get_provider_info()
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    assert info.keys() - schema["properties"].keys() == {"versions"}  # of provider.yaml's schema
    (integration,) = info["integrations"]
    icon = PROJECT / "memwal_airflow" / "page" / integration["logo"].removeprefix("/memwal/")
    assert icon.read_text().startswith("<svg")
    found = {}
    for kind in ("operators", "sensors", "hooks", "triggers"):
        ((name, modules),) = (part.values() for part in info[kind])
        assert name == integration["integration-name"]
        found[kind] = {
            thing
            for module in map(importlib.import_module, modules)
            for thing in vars(module).values()
            if isinstance(thing, type) and thing.__module__ == module.__name__
        }
    bases = {"operators": BaseOperator, "hooks": BaseHook, "triggers": BaseTrigger}
    for kind, base in {**bases, "sensors": BaseSensorOperator}.items():
        there = {
            value
            for module in pkgutil.walk_packages(memwal_airflow.__path__, "memwal_airflow.")
            for value in vars(importlib.import_module(module.name)).values()
            if isinstance(value, type)
            and issubclass(value, base)
            and value.__module__.startswith("memwal_airflow")
            and (kind != "operators" or not issubclass(value, BaseSensorOperator))
        }
        assert there - {MemWalJobOperator} <= found[kind], kind


def test_schemes_of_assets_are_nobody_elses() -> None:
    own = {scheme for part in get_provider_info()["asset-uris"] for scheme in part["schemes"]}
    others = {
        scheme
        for name, provider in ProvidersManager().providers.items()
        if name != "airflow-provider-lance-memwal"
        for part in provider.data.get("asset-uris", [])
        for scheme in part["schemes"]
    }
    assert own == {"memwal", "az", "abfss"}
    assert not own & (others | {"s3", "gs", "file"})
    assert Asset("memwal://merged/orders").normalized_uri == "memwal://merged/orders"
    with pytest.raises(ValueError, match="STEP/TABLE"):
        Asset("memwal://orders")


def test_spark_stays_in_the_other_environment() -> None:
    """apache-airflow-providers-apache-spark brings pyspark-client, which overwrites pyspark."""
    required = distribution("airflow-provider-lance-memwal").requires or []
    assert [text for text in required if "spark" in text] == []
    pins = (ROOT / "constraints-airflow.txt").read_text()
    assert re.findall(r"^.*spark.*==.*$", pins, re.M) == []
    assert importlib.util.find_spec("pyspark") is None


@dataclass(frozen=True, kw_only=True)
class Built:
    """What `make dist` builds of one project, and what is in it, by path in the project."""

    wheel: Path
    sdist: Path

    @property
    def in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if ".dist-info/" not in name}

    @property
    def beside_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return {n.split(".dist-info/")[1] for n in archive.namelist() if ".dist-info/" in n}

    @property
    def in_sdist(self) -> set[str]:
        with tarfile.open(self.sdist) as archive:
            assert all(member.isfile() for member in archive)
            return {name.partition("/")[2] for name in archive.getnames()}


def build_into(folder: Path, project: Path) -> Built:
    build_project(project, folder, SECONDS)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel=wheel, sdist=sdist)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_into(tmp_path_factory.mktemp("ours"), ROOT)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_into(tmp_path_factory.mktemp("provider"), PROJECT)


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def requirements(metadata: Message, *, extra: str | None = None) -> set[str]:
    """The names of what the package needs: in all, by itself, or for an extra."""
    found = set()
    for text in metadata.get_all("Requires-Dist") or []:
        of = re.search(r"extra == '(\w+)'", text)
        if extra is None or extra == (of[1] if of else ""):
            found.add(re.split(r"[^\w-]", text)[0])
    return found


def files_of(package: Path) -> set[str]:
    """What the package consists of: without caches, and without the maps of its code."""
    return {
        str(file.relative_to(package.parent))
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.name != "README.md"
    }


@pytest.mark.nightly
def test_what_the_wheels_are_called_and_require(ours: Built, provider: Built) -> None:
    """`memwal` on the package index is a stranger's: nothing of ours may ask for it."""
    of_ours, of_provider = read_metadata(ours.wheel), read_metadata(provider.wheel)

    assert of_ours["Name"] == "lance-memwal"
    assert of_provider["Name"] == "airflow-provider-lance-memwal"
    assert "memwal" not in requirements(of_ours) | requirements(of_provider)
    assert requirements(of_provider, extra="") == {"apache-airflow", "lance-memwal"}
    assert requirements(of_ours, extra="") == {"pydantic", "rich", "typer"}
    for extra in ("jobs", "spark", "metrics"):
        assert {"pylance", "boto3", "obstore"} <= requirements(of_ours, extra=extra)


@pytest.mark.nightly
def test_our_wheel_has_one_package(ours: Built) -> None:
    """A user's own `jobs/` stays theirs. Types and the Spark application come along."""
    assert ours.in_wheel == files_of(ROOT / "memwal") | PACKED
    assert {"memwal/py.typed", "memwal/cli/application.py"} <= ours.in_wheel
    assert ours.beside_wheel == BESIDE


@pytest.mark.nightly
def test_the_provider_s_wheel_has_what_the_package_needs(provider: Built) -> None:
    """The page's files and the DAGs come along."""
    assert provider.in_wheel == files_of(PROJECT / "memwal_airflow") | dags_of(PROJECT)
    assert any(name.endswith(".css") for name in provider.in_wheel)
    assert "memwal_airflow/py.typed" in provider.in_wheel
    assert provider.beside_wheel == BESIDE


def dags_of(project: Path) -> set[str]:
    """They lie in the checkout's `dags/`, to which the package has a link."""
    dags = {path.name for path in (ROOT / "dags").glob("*.py")}
    assert dags
    return {f"memwal_airflow/dags/{name}" for name in dags}


@pytest.mark.nightly
def test_what_the_sdists_hold(ours: Built, provider: Built) -> None:
    """What the wheels are made of, and nothing of the tests."""
    for built in (ours, provider):
        there = built.in_sdist
        added = {name for name in there if not name.endswith("README.md")} - built.in_wheel
        assert added - PAGES - {".airflowignore"} == {
            "pyproject.toml",
            "PKG-INFO",
            "LICENSE",
            ".gitignore",
        }
        assert built.in_wheel - PACKED <= there
    assert ours.in_sdist >= PAGES, "the wheel's are made of them"


def test_versions_agree() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert memwal_airflow.__version__ == project["version"]
    assert distribution("airflow-provider-lance-memwal").version == project["version"]
