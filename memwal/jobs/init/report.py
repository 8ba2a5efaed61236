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


class InitTableReport(TableReport):
    """One table: what it is, or in a dry run would be.

    `maintained_indexes` is null for every index. `steps` are the commits that the run made, or
    would make: primary_key, policy, expire, mem_wal, progress; the last lets go of inherited
    progress, of the shards of `let_go`. `shard_id` is the one that takes every row, if one does.
    """

    primary_key: tuple[str, ...] = ()
    spec: str = SpecKind.UNSHARDED
    maintained_indexes: tuple[str, ...] | None = None
    policy: dict[str, Any] | None = None
    expire: dict[str, Any] | None = None
    steps: tuple[str, ...] = ()
    let_go: tuple[str, ...] = ()
    shard_id: str | None = None
    warnings: tuple[str, ...] = ()


def report_init(
    name: str,
    before: int,
    found: FoundTable,
    request: InitRequest,
    steps: Sequence[Step],
) -> InitTableReport:
    """The report of a table that is ready, or could be made so by `steps`."""
    view, ready = found.view, found.has_mem_wal
    is_one = describe_spec(view) == SpecKind.UNSHARDED
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
        shard_id=_derive_shard(view) if ready and is_one else None,
        warnings=tuple(list_warnings(view, request)),
    )


def _derive_shard(view: TableView) -> ShardId:
    """The id that `ingest` and LanceDB take, too."""
    specs = view.mem_wal.shard_specs
    spec = read_spec(specs[0]) if specs else None
    return derive_id(spec, ShardValues(spec_id=0 if spec is None else spec.spec_id))


def show_table(report: InitTableReport) -> list[RenderableType]:
    """Render the table's setup, and the commits that were made."""
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
    if report.shard_id:
        parts.append(Text(f"  one shard: {report.shard_id}"))
    return parts
