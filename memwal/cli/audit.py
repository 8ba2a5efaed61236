"""`memwal audit`: what an audit trail says, and whether it is whole."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated

import typer

from memwal.cli.flags import AuditFlags, command, load
from memwal.config import ResolvedTable, read_environment_settings
from memwal.errors import Usage
from memwal.jobs.audit.request import AuditRequest
from memwal.report import JobReport

_VERIFY = "verify"

Tables = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE...|verify [TABLE...]",
        help="As for other commands. After the word verify: check that the trails of these tables "
        "are whole; without a table, all that are in the place configured.",
    ),
]


@command(AuditFlags)
def audit(tables: Tables, *, request: AuditRequest, flags: AuditFlags) -> JobReport:
    """Show what was done to a table, by whom and on what evidence.

    The audit trail is where `audit` in memwal.toml says. `memwal audit verify` finds documents that
    are missing or were changed.
    """
    from memwal.jobs.audit.job import run_audit, run_audit_verify, run_audit_verify_place

    if tables[:1] != [_VERIFY]:
        found = flags.tables(tables)
        others = {t.name: _find_other_shards(t, request) for t in found if request.key}
        return run_audit(found, request, others)
    if request != AuditRequest():
        raise Usage("audit verify checks whole trails: it takes no --path, --run, --key or --limit")
    if len(tables) > 1 or flags.everything:
        return run_audit_verify(flags.tables(tables[1:]))
    config, options = load(flags.config, flags.storage_option)
    place = flags.audit or read_environment_settings().get("audit") or config.defaults.audit
    if place is None:
        raise Usage(
            "audit verify: no place for audit trails is configured: set `audit` below [defaults] "
            "in memwal.toml, MEMWAL_AUDIT or --audit PLACE, or name a table"
        )
    return run_audit_verify_place(place, {**config.defaults.storage_options, **options})


def _find_other_shards(table: ResolvedTable, request: AuditRequest) -> Set[str]:
    """The shards that can't hold a row of the key, by the table's write spec. Raises Usage."""
    from memwal.read.plan.request import ReadRequest
    from memwal.read.table import check_keys, parse_keys, prune_shards
    from memwal.run.stores import open_stores

    stores = open_stores(table.find_uri(), table.storage_options)
    view = stores.views.table()
    schema = stores.tables.base(view.version).schema
    key = parse_keys([f"{name}={value}" for name, value in request.key], schema)
    keys = check_keys(key, view.primary_key, schema)
    return prune_shards(view, ReadRequest(keys=keys), lambda: schema).keys()
