"""`memwal schema`: a table's columns; and JSON Schemas of what `--json` prints, made from the
reports' classes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Union

import typer

from memwal.cli.flags import Job, JobFlags, command
from memwal.cli.output import Document
from memwal.errors import Usage
from memwal.jobs.schema.request import SchemaRequest
from memwal.report import JobReport, Section, TableReport

if TYPE_CHECKING:
    from rich.console import Console

VERSION = 8
"""The version of all documents: adding a field keeps it, removing or changing one raises it."""

_CHAINED = ("merge", "index-catchup", "compaction", "snapshot", "garbage")
REPORTS = (
    *_CHAINED,
    *("status", "maintain", "watch", "ingest", "backfill", "verify", "rescue", "quiesce", "runs"),
    *("doctor", "init", "checkpoint", "backup", "restore", "lease", "repair", "erase"),
    *("audit", "demo", "schema-table"),
)
"""The documents that are reports of jobs."""
OTHERS = {
    "read": "memwal.read.report.ReadDocument",
    "changes": "memwal.read.report.ChangesDocument",
    "inspect-index": "memwal.jobs.inspect.IndexDocument",
    "inspect-manifest": "memwal.jobs.inspect.ManifestDocument",
    "inspect-shard": "memwal.jobs.inspect.ShardsDocument",
    "inspect-wal": "memwal.jobs.inspect.WalDocument",
    "watch-event": "memwal.jobs.watch.report.EventDocument",
    "explain": "memwal.cli.explain.ExplainDocument",
    "schema": "memwal.cli.schema.SchemaNames",
}
"""All other documents, with their classes."""

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE...|DOCUMENT]",
        help="Tables, as for other commands; or the name of a document that --json prints. "
        "Default: list the documents.",
    ),
]


class SchemaNames(Section):
    """`memwal schema` without a document's name."""

    version: int
    documents: list[str]


@command(JobFlags)
def schema(tables: Names = None, *, request: SchemaRequest, flags: JobFlags) -> Document | Job:
    """Show a table's columns; with --apply, change them.

    Without --apply it says what the changes come to. Columns change at rest: what is pending is
    merged first, and writers are closed, or fenced by --fence. With the name of a document instead
    of a table, it shows the JSON Schema of what --json prints.
    """
    names = tables or []
    if len(names) == 1 and names[0] in (*REPORTS, *OTHERS) and not request.asks:
        return Document(content=make_schema(names[0]), show=_print)
    if not names and not flags.everything:
        known = SchemaNames(version=VERSION, documents=[*REPORTS, *OTHERS])
        return Document(content=known.to_json())
    from memwal.jobs.schema.job import SchemaOptions, run_schema

    return flags.job(run_schema, SchemaOptions, names, request=request)


def _print(content: Mapping[str, Any], console: Console) -> None:
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def make_schema(name: str) -> dict[str, Any]:
    """Make the schema of a document. Raises Usage for an unknown name."""
    if name not in (*REPORTS, *OTHERS):
        raise Usage(f"no document {name!r}: expected {', '.join((*REPORTS, *OTHERS))}")
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Written(GenerateJsonSchema):
        """Requires fields with a default too in reports, as those are always written."""

        def field_is_required(self, field: Any, total: bool) -> bool:
            return name in REPORTS or super().field_is_required(field, total)

    kind: Any = _find_report(name) if name in REPORTS else None
    if kind is None:
        module, _, kind_name = OTHERS[name].rpartition(".")
        own = getattr(import_module(module), kind_name)
        kind = own if name == "watch-event" else Union[own, JobReport]  # noqa: UP007
    found = TypeAdapter(kind).json_schema(mode="serialization", schema_generator=Written)
    if "JobOnTable" in found.get("$defs", {}):  # its serializer makes them one object
        text = "What a job of the chain came to: `job`, and the table as in that job's document."
        found["$defs"]["JobOnTable"] = {
            "type": "object",
            "description": text,
            "properties": {key: {"type": "string"} for key in ("job", "table", "outcome")},
            "required": ["job", "table", "outcome"],
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:lance-memwal:{name}:{VERSION}",
        **found,
        "title": f"memwal {name}",
    }


def _find_report(name: str) -> Any:
    """Return a report's type: its tables are of the job's kinds, or plain if they failed early."""
    from pydantic import create_model

    several = {
        "demo": _CHAINED,
        "watch": ("watch", "maintain"),
        "schema-table": ("schema",),
        "backfill": ("maintain",),
    }
    jobs = several.get(name, (name,))
    kinds: list[type] = [kind for job in jobs for kind in _list_reports(job)]
    whole = next((kind for kind in kinds if issubclass(kind, JobReport)), JobReport)
    tables = [kind for kind in kinds if issubclass(kind, TableReport)]
    union: Any = Union[(*tables, TableReport)]
    made = create_model("Document", __base__=whole, tables=(tuple[union, ...], ()))
    made.__doc__ = whole.__doc__
    return made if whole is JobReport else Union[made, JobReport]  # noqa: UP007


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the room is one module
        return False


def _list_reports(job: str) -> list[type]:
    """Return the reports' classes; a small job has no module of its own for them."""
    room = "memwal.ingest" if job == "ingest" else f"memwal.jobs.{job.replace('-', '_')}"
    for name in (f"{room}.report", f"{room}.plan", f"{room}.job", room):
        found = [
            kind
            for kind in (vars(import_module(name)).values() if _exists(name) else ())
            if isinstance(kind, type)
            and issubclass(kind, JobReport | TableReport)
            and kind.__module__ == name
        ]
        if found:
            return found
    return []
