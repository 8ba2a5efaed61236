"""`memwal verify`: gathers facts about a table at rest and prints a verdict an invariant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pyarrow as pa

from memwal.config import ResolvedTable
from memwal.errors import Corruption, MemWalError, Missing, Refused
from memwal.format import layout
from memwal.jobs.verify import plan as verify
from memwal.jobs.verify.report import CheckReport, VerifyTableReport
from memwal.jobs.verify.store import (
    read_generation,
    read_highest_fragment,
    read_operation,
    read_private_index,
    read_uncovered_fragments,
)
from memwal.model import FlushedGeneration, ShardId, ShardView, TableView, VersionManifest
from memwal.report import (
    DONE,
    FAILED,
    REFUSED,
    JobReport,
    TableReport,
)
from memwal.rows.keyset import find_shared_key
from memwal.rows.lineage import check_lineage
from memwal.rows.policy import parse_policy
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.policy import policy_warnings
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.generations import Generations, Source
from memwal.store.stored_policy import check_fits

_READERS_MAX = 16
# Keys of pending rows that are held in memory at once, to find one that is in two shards.
_KEYS_COMPARED_MAX = 10_000_000
# Versions that a user made by turning time back.
_REWINDING = ("Restore", "Overwrite")


def run_verify(options: RunOptions, progress: Progress) -> JobReport:
    """Check each table; changes nothing. Exit code 8 when an invariant is broken."""

    def verify_table(
        table: OpenTable, stores: Stores, view: TableView, fanout: Fanout
    ) -> TableReport:
        return _verify(table, stores, view, progress)

    return JobRunner(name="verify", looks_only=True).run_each(options, verify_table, progress)


def _verify(table: OpenTable, stores: Stores, view: TableView, progress: Progress) -> TableReport:
    checks: list[verify.Check] = []
    leavings: list[str] = []
    steps = _checks(stores, view, leavings)
    if view.policy_text is not None or table.resolved.policy is not None:
        steps = (
            *steps,
            ("row-merge policy", lambda: _check_policy(table.resolved, stores, view)),
        )
    progress.start("checks", len(steps))
    for done, (name, make) in enumerate(steps, start=1):
        try:
            checks += make()
        except MemWalError as error:
            checks.append(
                verify.Check(
                    invariant=None,
                    name=name,
                    ok=False if isinstance(error, Corruption) else None,
                    detail=str(error),
                )
            )
        progress.done(done)
    outcome, code = DONE, 0
    told = [check for check in checks if check.ok is False]
    if told:
        outcome, code = FAILED, Corruption.exit_code
    elif told := [check for check in checks if check.refused]:
        outcome, code = REFUSED, Refused.exit_code
    return VerifyTableReport(
        table=table.resolved.name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(f"{c.name}: {c.detail}" for c in told) or None,
        version_before=view.version,
        version_after=view.version,
        checks=tuple(
            CheckReport(invariant=c.invariant, name=c.name, ok=c.ok, detail=c.detail)
            for c in checks
        ),
        warnings=(*_private_indexes(stores, view), *verify.leaving_warnings(leavings)),
    )


def _checks(
    stores: Stores, view: TableView, leavings: list[str]
) -> Sequence[tuple[str, Callable[[], Sequence[verify.Check]]]]:
    return (
        ("shard manifests", lambda: [verify.check_manifests(view)]),
        ("generations contiguous", lambda: [verify.check_contiguous(view.shards)]),
        ("listed generations", lambda: [_generations(stores, view)]),
        ("one key, one shard", lambda: [_one_shard(stores, view)]),
        ("merge progress and catch-up", lambda: _history_checks(stores, view)),
        ("WAL", lambda: _wal_checks(stores, view)),
        ("folders", lambda: _folder_checks(stores, view, leavings)),
        ("lineage", lambda: [_lineage(stores, view)]),
    )


def _generations(stores: Stores, view: TableView) -> verify.Check:
    pairs = [(s.shard_id, g) for s in view.shards for g in s.manifest.flushed_generations]
    with ThreadPoolExecutor(_READERS_MAX) as pool:
        facts = list(pool.map(lambda pair: read_generation(_generations_of(stores), *pair), pairs))
    return verify.check_generations(facts)


def _generations_of(stores: Stores) -> Generations:
    return Generations(objects=stores.objects, tables=stores.tables, renamed=stores.views.renamed)


def _one_shard(stores: Stores, view: TableView) -> verify.Check:
    pending = [(s.shard_id, g) for s in view.shards for g in s.pending]
    if not view.primary_key or len({shard_id for shard_id, _ in pending}) < 2:
        return verify.check_one_shard(None, 0, _KEYS_COMPARED_MAX)

    def opened(pair: tuple[ShardId, FlushedGeneration]) -> Source:
        return _generations_of(stores).open(view, *pair)

    def keys(pair: tuple[ShardId, FlushedGeneration], source: Source) -> pa.Table:
        return _generations_of(stores).keys(*pair, source, view.primary_key)

    with ThreadPoolExecutor(_READERS_MAX) as pool:
        sources = list(pool.map(opened, pending))
        rows = sum(pool.map(lambda source: int(source.dataset.count_rows()), sources))
        if rows > _KEYS_COMPARED_MAX:
            return verify.check_one_shard(None, rows, _KEYS_COMPARED_MAX)
        tables: dict[ShardId, list[pa.Table]] = {}
        for (shard_id, _), table in zip(pending, pool.map(keys, pending, sources), strict=True):
            tables.setdefault(shard_id, []).append(table)
    found = find_shared_key(tables, view.primary_key)
    return verify.check_one_shard(found, rows, _KEYS_COMPARED_MAX)


def _private_indexes(stores: Stores, view: TableView) -> tuple[str, ...]:
    if not view.primary_key:
        return ()  # then there are none
    pending = [(s.shard_id, g) for s in view.shards for g in s.pending]
    with ThreadPoolExecutor(_READERS_MAX) as pool:
        facts = list(
            pool.map(lambda pair: read_private_index(_generations_of(stores), *pair), pending)
        )
    return verify.private_index_warnings(facts)


def _history_checks(stores: Stores, view: TableView) -> Sequence[verify.Check]:
    versions = [
        v
        for v in stores.table_manifests.versions()
        if v <= view.version and not layout.is_detached(v)
    ]
    with ThreadPoolExecutor(_READERS_MAX) as pool:
        found = list(pool.map(lambda v: _manifest(stores, v), versions))
    history = [manifest for manifest in found if manifest is not None]
    rewound = {
        after.version
        for before, after in pairwise(history)
        if _fell(before, after) and read_operation(stores.tables, after.version) in _REWINDING
    }
    return (
        verify.check_progress_history(history, rewound),
        verify.check_catch_up(view, _catch_up(stores, view, history)),
    )


def _manifest(stores: Stores, version: int) -> VersionManifest | None:
    try:
        return stores.table_manifests.read(version)
    except Missing:
        return None  # expired since it was listed


def _fell(before: VersionManifest, after: VersionManifest) -> bool:
    if before.mem_wal is None:
        return False
    if after.mem_wal is None:
        return True
    merged = after.mem_wal.merged
    return any(merged.get(shard, -1) < g for shard, g in before.mem_wal.merged.items())


def _catch_up(
    stores: Stores, view: TableView, history: Sequence[VersionManifest]
) -> list[verify.CatchUpFacts]:
    facts = []
    coverage = read_uncovered_fragments(stores.tables, view.version)
    for name, claim in view.mem_wal.index_catchup.items():
        recorded: int | None = None
        cut = True
        for manifest in reversed(history):
            state = manifest.mem_wal
            if state is None or dict(state.index_catchup.get(name, {})) != dict(claim):
                cut = False
                break
            recorded = manifest.version
        level = None
        if recorded is not None and not cut:
            level = read_highest_fragment(stores.tables, recorded)
        facts.append(
            verify.CatchUpFacts(
                index=name,
                claim=claim,
                uncovered_fragments=coverage.get(name, ()),
                claimed_at_fragment=level,
            )
        )
    return facts


def _wal_checks(stores: Stores, view: TableView) -> Sequence[verify.Check]:
    wals = {shard.shard_id: _wal(stores, shard) for shard in view.shards}
    return (
        verify.check_wal(view.shards, wals),
        verify.check_sentinels(view.shards, wals),
    )


def _wal(stores: Stores, shard: ShardView) -> verify.WalFacts:
    positions, epochs, broken, refused = [], set(), [], []
    for position, info in stores.wal.listed(shard.shard_id):
        positions.append(position)
        try:
            entry = stores.wal.read(shard.shard_id, position, info)
        except Missing:
            continue
        except Refused as error:
            refused.append(str(error))
            continue
        except MemWalError as error:
            broken.append(str(error))
            continue
        if entry.fence_sentinel and entry.writer_epoch is not None:
            epochs.add(entry.writer_epoch)
    return verify.WalFacts(
        shard_id=shard.shard_id,
        positions=tuple(positions),
        sentinel_epochs=frozenset(epochs),
        broken=tuple(broken),
        refused=tuple(refused),
    )


def _folder_checks(stores: Stores, view: TableView, leavings: list[str]) -> Sequence[verify.Check]:
    """What is in the folders; what an operating system or an editor left goes to `leavings`."""
    inside: dict[ShardId, set[str]] = {shard.shard_id: set() for shard in view.shards}
    outside: set[str] = set()
    for info in stores.objects.list(layout.MEM_WAL):
        if layout.is_leaving(info.path.rsplit("/", 1)[-1]):
            leavings.append(info.path)
            continue
        name, _, rest = info.path.removeprefix(f"{layout.MEM_WAL}/").partition("/")
        if layout.is_shard_folder(name):
            inside.setdefault(ShardId(name), set()).add(rest.partition("/")[0])
        else:
            outside.add(name)
    return (
        verify.check_strangers(outside, inside),
        verify.count_orphans(view.shards, inside),
    )


def _lineage(stores: Stores, view: TableView) -> verify.Check:
    problems = []
    stores.views.lineage(view, view.shards)
    for shard in view.shards:
        try:
            if shard.pending and not shard.merged_generation:
                flushed_at = stores.views.flushed_at_nanos(shard.shard_id, shard.pending[0])
                since = stores.views.mem_wal_since_nanos(view, flushed_at)
                check_lineage(shard, flushed_at, since)
        except Missing as missing:
            raise Corruption(f"shard {shard.shard_id}: {missing}") from None
        except Refused as error:
            problems.append(str(error))
    return verify.Check(
        invariant=1,
        name="pending generations belong to this MemWAL index",
        ok=not problems,
        detail="; ".join(problems) or "none is older than the index",
    )


def _check_policy(resolved: ResolvedTable, stores: Stores, view: TableView) -> list[verify.Check]:
    """Whether the stored policy fits the table; a configuration that differs settles nothing."""
    ok: bool | None = True
    try:
        if view.policy_text is not None:
            policy = parse_policy(view.policy_text)
            check_fits(policy, view, stores.tables.at(view.version).schema)
        text = str(view.policy_text)
    except Refused as error:
        ok, text = False, str(error)
    for warning in policy_warnings(resolved, view) if ok else ():
        ok, text = None, warning
    return [verify.Check(invariant=None, name="row-merge policy", ok=ok, detail=text)]
