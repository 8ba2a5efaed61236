"""What `memwal maintain` reports."""

from __future__ import annotations

from memwal.report import JobOnTable, TableReport


class MaintainTableReport(TableReport):
    """One table of `maintain`: each job's own report of it, in the order they ran."""

    jobs: tuple[JobOnTable, ...] = ()
