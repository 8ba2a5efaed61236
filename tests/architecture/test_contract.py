"""The import contract (.importlinter): it holds, and it would notice if it did not."""

from __future__ import annotations

import ast
from configparser import ConfigParser
from copy import deepcopy
from functools import cache
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

from tests.architecture.files import ROOT, texts

FILE = ROOT / ".importlinter"
KINDS = {"layers": LayersContract, "forbidden": ForbiddenContract}
DAGS_MAY_IMPORT = ("__future__.", "airflow.sdk.", "memwal_airflow.")

# How the name of each contract begins, and an import that breaks it.
BREACHES = {
    "Layers": ("memwal.jobs.merge.job", "memwal.jobs.garbage.job"),
    "Only the Spark data source": ("memwal.read.table", "memwal.ingest.writer"),
    "Objects are below": ("memwal.store.objects.s3", "memwal.store.records.lease"),
    "In an ingest": ("memwal.ingest.values.shape", "memwal.ingest.spark.staging"),
    "The coordinator knows": ("memwal.ingest.coordinator", "pyarrow"),
    "What runs a process": ("memwal.run.engines.pool", "memwal.run.fanout"),
    "Operators and sensors": ("memwal_airflow.hooks.memwal", "memwal_airflow.operators.base"),
    "Plans decide": ("memwal.jobs.garbage.plan", "os"),
    "The folds are": ("memwal.rows.fold", "memwal.clock"),
    "Work is done through ports": ("memwal.jobs.schema.apply", "memwal.jobs.schema.store"),
    "Fakes stay out": ("memwal.run.stores", "memwal.testing"),
    "Airflow knows": ("memwal_airflow.hooks.memwal", "memwal.format.layout"),
    "Shard values": ("memwal.sharding.spec", "random"),
}
CONTRACTS = read_configuration(str(FILE))["contracts_options"]


@cache
def imports() -> grimp.ImportGraph:
    """Who imports whom, as lint-imports reads it."""
    return grimp.build_graph(
        "memwal",
        "memwal_airflow",
        include_external_packages=True,
        exclude_type_checking_imports=True,
    )


def imports_and(importer: str, imported: str) -> grimp.ImportGraph:
    """The same with one import more."""
    graph = deepcopy(imports())
    assert importer in graph.modules
    if imported not in graph.modules:
        graph.add_module(imported, is_squashed=True)
    graph.add_import(importer=importer, imported=imported)
    return graph


@pytest.mark.parametrize("options", CONTRACTS, ids=lambda options: options["id"])
def test_a_contract_is_kept_and_a_breach_of_it_is_noticed(options: dict[str, str]) -> None:
    (breach,) = [breach for name, breach in BREACHES.items() if options["name"].startswith(name)]
    contract = KINDS[options["type"]](
        name=options["name"],
        session_options=read_configuration(str(FILE))["session_options"],
        contract_options={k: v for k, v in options.items() if k not in ("id", "name", "type")},
    )
    found = contract.check(deepcopy(imports()), verbose=False)
    if not found.kept:
        contract.render_broken_contract(found)
    assert found.kept
    assert not contract.check(imports_and(*breach), verbose=False).kept


# ---- who imports a heavy library


def find_strangers(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """By the names of a library: modules that import it and may not, or that may and do not."""
    table = ConfigParser()
    table.read(FILE)
    found = {}
    for names, homes in table["libraries"].items():
        importers = {
            importer
            for module in graph.modules
            if is_in(module, names.split(", "))
            for importer in graph.find_modules_that_directly_import(module)
        }
        strangers = {each for each in importers if not is_in(each, homes.split())}
        idle = {home for home in homes.split() if not any(is_in(i, [home]) for i in importers)}
        found[names] = strangers | idle
    return found


def is_in(module: str, packages: list[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def test_a_library_is_imported_where_the_table_says_and_nowhere_else() -> None:
    found = find_strangers(imports())
    assert found == {names: set() for names in found}
    more = find_strangers(imports_and("memwal.jobs.merge.job", "lance"))
    assert more["lance, lance_namespace"] == {"memwal.jobs.merge.job"}


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = grimp.build_graph("memwal", "memwal_airflow", exclude_type_checking_imports=True)
    assert find_circle(graph) == []
    graph.add_import(importer="memwal.errors", imported="memwal.store.tables.view")
    assert {"memwal.errors", "memwal.store.tables.view"} <= {*find_circle(graph)}


def find_circle(graph: grimp.ImportGraph) -> list[str]:
    """Modules that import each other in a circle; none where there is no circle."""
    try:
        TopologicalSorter(
            {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        ).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


# ---- DAG files, which are no package: they put things together, and do nothing


def test_a_dag_imports_only_airflow_and_our_package() -> None:
    nodes = [
        node
        for name, text in texts().items()
        if name.startswith("dags/") and name.endswith(".py")
        for node in ast.walk(ast.parse(text))
    ]
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    assert "memwal_airflow" in str(found)
    assert [name for name in found if not f"{name}.".startswith(DAGS_MAY_IMPORT)] == []
