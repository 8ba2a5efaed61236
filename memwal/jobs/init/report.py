"""What `memwal init` reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from memwal.ingest.routing import ShardValues, derive_id
from memwal.jobs.init.plan import (
    DEFAULT_SPEC,
    FoundTable,
    InitRequest,
    SpecKind,
    Step,
    describe_spec,
    find_maintained,
    list_warnings,
)
from memwal.model import ShardId, TableView
from memwal.report import DONE, NOTHING_TO_DO, TableReport
from memwal.rows.expire import describe_expire
from memwal.sharding.spec import read_spec

# Blobs: Lance gives them otherwise than its writer takes them; memwal's own writer converts.
_CONVERTED = ("extension<", "large_binary")


class InitTableReport(TableReport):
    """One table: what it is, or in a dry run would be.

    `maintained_indexes` is null for every index. `steps` are the commits that the run made, or
    would make: primary_key, policy, expire, mem_wal, progress; the last lets go of inherited
    progress, of the shards of `let_go`. `write` are lines of Python that write to the table,
    none in a dry run.
    """

    primary_key: tuple[str, ...] = ()
    spec: str = SpecKind.UNSHARDED
    maintained_indexes: tuple[str, ...] | None = None
    policy: dict[str, Any] | None = None
    expire: dict[str, Any] | None = None
    steps: tuple[str, ...] = ()
    let_go: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def report_init(
    name: str,
    before: int,
    found: FoundTable,
    request: InitRequest,
    steps: Sequence[Step],
    write: Sequence[str],
) -> InitTableReport:
    """The report of a table that is ready, or could be made so by `steps`."""
    view, ready = found.view, found.has_mem_wal
    has = None if request.policy is None else request.policy.as_document()
    return InitTableReport(
        table=name,
        outcome=DONE if steps else NOTHING_TO_DO,
        version_before=before,
        version_after=view.version,
        primary_key=request.key_of(view),
        spec=describe_spec(view) if ready else str(request.spec or DEFAULT_SPEC),
        maintained_indexes=find_maintained(view) if ready else request.maintained,
        policy=json.loads(view.policy_text) if view.policy_text else has,
        expire=request.expire.as_document() if request.expire else describe_expire(view),
        steps=tuple(steps),
        let_go=tuple(sorted(found.inherited)),
        write=tuple(write),
        warnings=tuple(list_warnings(view, request)),
    )


def write_lines(
    view: TableView, address: str, shards: Sequence[ShardId], *, has_options: bool
) -> tuple[str, ...]:
    """Python that writes to the table: by pylance's writer where one shard takes every row.

    A row of its own stands for the rows to write. Options come from where memwal takes secrets.
    """
    options = ', json.loads(os.environ["MEMWAL_STORAGE_OPTIONS"])' if has_options else ""
    imports = ("import json, os",) if has_options else ()
    where = json.dumps(address)
    kinds = [column.type_text for column in view.columns]
    is_plain = not any(kind.startswith(_CONVERTED) for kind in kinds)
    is_one = describe_spec(view) in (SpecKind.UNSHARDED, SpecKind.MANUAL) and len(shards) <= 1
    if is_one and is_plain:
        shard = shards[0] if shards else _derive_shard(view)
        named = options.replace(", ", ", storage_options=", 1)
        return (
            *imports,
            "import lance",
            f"table = lance.dataset({where}{named})",
            "rows = table.head(1)  # yours: a pyarrow.Table with the table's columns",
            f'with table.mem_wal_writer("{shard}") as writer:',
            "    writer.put(rows)",
        )
    return (
        *imports,
        "import memwal, memwal.ingest",
        f"rows = memwal.open_table({where}{options}).read(limit=1).read_all()"
        "  # yours: Arrow data, or a list of dicts",
        f"with memwal.ingest.open_writer({where}{options}) as writer:",
        "    writer.write(rows)",
    )


def _derive_shard(view: TableView) -> ShardId:
    """The id that `ingest` and LanceDB take, too."""
    specs = view.mem_wal.shard_specs
    spec = read_spec(specs[0]) if specs else None
    return derive_id(spec, ShardValues(spec_id=0 if spec is None else spec.spec_id))


def show_table(report: InitTableReport) -> list[RenderableType]:
    """Render the table's setup, the commits that were made, and code that writes to the table.

    The code is not indented, so that it can be copied.
    """
    indexes = report.maintained_indexes
    kept = "every index" if indexes is None else ", ".join(indexes) or "none"
    key = ", ".join(report.primary_key) or "none"
    parts: list[RenderableType] = [
        Text(f"  primary key {key}; spec {report.spec}; indexes that writers maintain: {kept}"),
        Text(f"  commits: {', '.join(report.steps) or 'none; it was as asked'}"),
    ]
    if report.expire:
        parts.append(Text(f"  rows expire: {json.dumps(report.expire)}"))
    if report.let_go:
        parts.append(Text(f"  progress that is not theirs: of {', '.join(report.let_go)}"))
    if report.write:
        parts += [Text("  to write to it:", style="dim"), Text("")]
        parts += [Text(line) for line in (*report.write, "")]
    return parts
