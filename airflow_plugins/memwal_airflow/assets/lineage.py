"""Tables' addresses, and what a job did to its tables, for OpenLineage.

An ingest's output and a merge's input is the table's MemWAL. OpenLineage's provider is imported
only when it asks for lineage, so it need not be installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from memwal.config import Config, is_address, mask_address
from memwal.errors import Usage

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset

KEY = "lineage"
"""Where a table's outline is kept in a summary, on its way from the report to `Lineage`."""
MERGING = ("merge", "maintain", "backfill")
"""The jobs that change what readers of the base table see."""
COLUMNS_MAX = 500
SOURCES_MAX = 100
_ROWS = ("rows_inserted", "rows_updated", "rows_deleted")


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """What a task's job did to its tables: its summary, and each table's `outline`."""

    run_id: str
    summary: Mapping[str, Any]
    outlines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def outline(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what lineage needs from a job's report of a table, bounded in size."""
    shards, sources = table.get("shards", ()), table.get("sources", ())
    found = {
        "columns": dict(list((table.get("columns") or {}).items())[:COLUMNS_MAX]),
        "sources": [source["uri"] for source in sources[:SOURCES_MAX]],
        "rows": _sum([table], "rows_written", "rows_after") or _sum(shards, *_ROWS),
        "bytes": _sum([table], "bytes_written", "bytes_rewritten") or _sum(shards, "bytes_read"),
    }
    return {name: value for name, value in found.items() if value}


def take_outlines(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Remove the outlines from a report's summary, which is stored and shown, and return them.

    They are by table. If several jobs ran on a table, later jobs' values override earlier ones.
    """
    found: dict[str, dict[str, Any]] = {}
    for table in summary["tables"]:
        for part in (table, *table.get("jobs", [])):
            if told := part.pop(KEY, None):
                found[table["table"]] = {**found.get(table["table"], {}), **told}
    return found


class TellsLineage:
    """A mixin with what OpenLineage calls on an operator that has run a job."""

    job: str
    lineage: Lineage | None = None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the datasets of the job, even after a failure: some tables may have changed."""
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.facet_v2 import external_query_run

        told: OperatorLineage[Any, Any] = OperatorLineage()
        if self.lineage is None or self.lineage.summary.get("dry_run"):
            return told
        run = external_query_run.ExternalQueryRunFacet(self.lineage.run_id, source="memwal")
        told.run_facets["externalQuery"] = run
        for table in self.lineage.summary["tables"]:
            if not table["progress"]:
                continue
            found = self.lineage.outlines.get(table["table"], {})
            base = find_dataset(table["table"])
            pending = (base[0], f"{base[1]}/_mem_wal")
            facets, output_facets = _build_facets(table, found)
            if self.job == "ingest":
                sources = [split_address(source) for source in found.get("sources", [])]
                inputs, output = sources, pending
            else:
                inputs, output = [pending if self.job in MERGING else base], base
            told.inputs += [InputDataset(*source) for source in inputs]
            told.outputs.append(OutputDataset(*output, facets=facets, outputFacets=output_facets))
        return told


def find_dataset(table: str) -> tuple[str, str]:
    """Return OpenLineage's namespace and name for a table."""
    from memwal_airflow.settings import read_dag_config

    try:
        address = find_address(table, read_dag_config())
    except Usage:
        address = None
    return ("memwal", table) if address is None else split_address(address)


def convert_asset(asset: Asset, lineage_context: Any) -> Any:
    """Convert an asset to OpenLineage's dataset, for Airflow."""
    from openlineage.client.event_v2 import Dataset

    return Dataset(*split_address(asset.uri))


def _build_facets(
    table: Mapping[str, Any], found: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Build an output dataset's facets: those of the table, and those of what the job wrote."""
    from openlineage.client.facet_v2 import (
        dataset_version_dataset,
        output_statistics_output_dataset,
        schema_dataset,
    )

    facets: dict[str, Any] = {}
    if table["version_after"] is not None:
        version = str(table["version_after"])
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(version)
    if columns := found.get("columns"):
        field_of = schema_dataset.SchemaDatasetFacetFields
        fields = [field_of(name=name, type=kind) for name, kind in columns.items()]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields)
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=found.get("rows"), size=found.get("bytes")
    )
    return facets, {"outputStatistics": statistics}


def _sum(parts: Sequence[Mapping[str, Any]], *names: str) -> int:
    return sum(part.get(name) or 0 for part in parts for name in names)


def find_address(table: str, config: Config) -> str | None:
    """Return the table's address as an asset's URI, without credentials.

    None for a name that is not in the configuration, and for a table of a namespace, since the
    namespace may move it one day.
    """
    section = config.tables.get(table)
    address = section.uri if section else table
    if section is None and not is_address(address):
        return None
    if address.partition(":")[0] in config.namespaces and "/" not in address:
        return None
    return tidy_address(address)


def tidy_address(address: str) -> str:
    """Return an address as an asset's URI: without credentials, and with a scheme."""
    if "://" not in address:
        return Path(address).absolute().as_uri()
    return mask_address(address).replace("***@", "", 1).removesuffix("?***").rstrip("/")


def split_address(address: str) -> tuple[str, str]:
    """Return OpenLineage's namespace and name for an address."""
    parts = urlsplit(tidy_address(address))
    if parts.scheme == "file":
        return "file", unquote(parts.path)
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/") or "/"
