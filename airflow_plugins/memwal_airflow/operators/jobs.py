"""One operator for each job. Its own fields are the options that the job's request declares.

Each takes `tables`, a name or a list; `table` where the command takes exactly one. A field that is
not given leaves it to the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from memwal.errors import Usage
from memwal.ingest.request import IngestRequest
from memwal.jobs.backup.request import BackupRequest
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.jobs.maintain.request import BackfillJob, BackfillRequest, MaintainRequest
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.verify.request import VerifyRequest
from memwal_airflow.hooks.request import is_true
from memwal_airflow.operators.base import MemWalJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

BACKFILL_JOBS = get_args(BackfillJob)


class MemWalMergeOperator(MemWalJobOperator):
    """Folds flushed generations into the base table, oldest first."""

    job = "merge"
    request = MergeRequest


class MemWalBackfillOperator(MemWalJobOperator):
    """Merges many tables and catches their indexes up, several at a time."""

    job = "backfill"
    request = BackfillRequest


class MemWalIndexCatchupOperator(MemWalJobOperator):
    """Extends the base table's indexes over the rows that merges added."""

    job = "index-catchup"
    request = CatchupRequest


class MemWalSnapshotOperator(MemWalJobOperator):
    """Refreshes the shard snapshot in the MemWAL index."""

    job = "snapshot"


class MemWalCompactionOperator(MemWalJobOperator):
    """Rewrites the small fragments that merging leaves."""

    job = "compaction"


class MemWalGarbageOperator(MemWalJobOperator):
    """Lists what is provably unused; deletes it with `execute`."""

    job = "garbage"
    request = GarbageRequest


class MemWalMaintainOperator(MemWalJobOperator):
    """Merges, catches indexes up, refreshes the snapshot and collects garbage, in one run."""

    job = "maintain"
    request = MaintainRequest


class MemWalRescueOperator(MemWalJobOperator):
    """Flushes what a writer that is gone left in the WAL, for a merge to take.

    It claims the shard: a writer that is alive after all is fenced, and has to be opened again. So
    it works only in runs that were started by hand, and only with `yes`; a dry run tells which
    shards would be claimed.
    """

    job = "rescue"
    request = RescueRequest
    common_options: ClassVar[Sequence[str]] = ("no_lease", "allow_untested_lance", "dry_run")

    def check_run(self, context: Context) -> None:
        """Raise Usage for a claim, unless the run was started by hand and confirmed with `yes`."""
        if is_true(getattr(self, "dry_run_only", None)):
            return
        if context["dag_run"].run_type.value != "manual":
            raise Usage("rescue claims shards only in a run that was started by hand")
        if not is_true(getattr(self, "yes", None)):
            raise Usage("claiming shards has to be confirmed: set `yes`, or leave it at a dry run")


class MemWalVerifyOperator(MemWalJobOperator):
    """Checks the invariants on a table, and changes nothing.

    If a table breaks an invariant, its task fails at once and names both.
    """

    job = "verify"
    request = VerifyRequest
    common_options: ClassVar[Sequence[str]] = ("allow_untested_lance",)


class MemWalBackupOperator(MemWalJobOperator):
    """Copies one moment of a table to another place.

    :param tables: a name in memwal.toml, a path, or an s3:// address (templated)
    :param dest: where to; by default what `[tables.NAME.backup]` names. Don't let whoever starts a
        run choose it: the copy is made with the jobs' credentials (templated)
    """

    job = "backup"
    request = BackupRequest
    common_options: ClassVar[Sequence[str]] = ("no_lease", "allow_untested_lance", "dry_run")
    template_fields: Sequence[str] = (*MemWalJobOperator.template_fields, "dest")

    def __init__(self, *, tables: str, dest: str | None = None, **kwargs: Any) -> None:
        super().__init__(tables=tables, **kwargs)
        self.dest = dest

    def list_sources(self) -> list[str]:
        """The place, which follows the table."""
        if not isinstance(self.tables, str):
            raise Usage("a backup is of one table: map the operator over several")
        return [self.dest] if self.dest else []


class MemWalIngestOperator(MemWalJobOperator):
    """Writes files into a table's MemWAL, each row once; after a kill or failure it resumes.

    The table in the return value has `rows_written` and `rows_rejected`. A DAG should run it
    once at a time (`max_active_runs=1`): a second run would take the shards from the first, which
    would then fail.

    :param table: a name in memwal.toml, a path, or an s3:// address (templated)
    :param sources: files, folders, patterns, Lance tables: one, or a list. From a folder, each run
        takes the files that are new. They are read with the jobs' credentials, so don't let whoever
        starts a run choose them (templated)
    """

    job = "ingest"
    request = IngestRequest
    template_fields: Sequence[str] = (*MemWalJobOperator.template_fields, "sources")

    def __init__(self, *, table: str, sources: Sequence[str] | str, **kwargs: Any) -> None:
        super().__init__(tables=table, **kwargs)
        self.sources = sources

    def list_sources(self) -> list[str]:
        """The sources, which follow the table."""
        found = [self.sources] if isinstance(self.sources, str) else list(self.sources or ())
        if not found:
            raise Usage("no source is named")
        return found


OPERATORS = {kind.job: kind for kind in MemWalJobOperator.__subclasses__()}
