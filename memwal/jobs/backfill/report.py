"""What `memwal backfill` reports."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from memwal.report import JobReport, MaintainTableReport

State = Literal["waiting", "running", "finished"]
WAITING: Final = "waiting"
RUNNING: Final = "running"
FINISHED: Final = "finished"


class TableBacklogReport(BaseModel):
    """What a table had before it when the run began; bytes are in memory, None: not known.

    Rows count once for each index that lacks them; rows that are yet to be merged are not in it.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    generations: int
    bytes: int | None
    unindexed_rows: int
    indexes_behind: int


class BackfillTableReport(MaintainTableReport):
    """One table of a backfill; `jobs` holds the jobs' own reports of it, in the order they ran.

    `state` tells what was finished when the document was written. A killed run leaves one in which
    tables are waiting or running; their outcome is `held`, and a run of the same command goes on.
    """

    state: State = FINISHED
    backlog: TableBacklogReport | None = None
    seconds: float = 0.0


class BackfillReport(JobReport):
    """The document of a backfill; its tables stand in the order in which they were begun."""

    finished: bool = True
