"""Named mutations: each switches one safety check off; the tests or the simulation must notice.

A mutation is text in a file and what it becomes, on a copy of the sources; text that is not found
exactly once is an error, so the list can't rot. The lists are by module: `mutations_*.py`.
"""

from __future__ import annotations

from mutation_list import Change, Mutation
from mutations_airflow import AIRFLOW
from mutations_garbage import GARBAGE
from mutations_indexes import INDEXES
from mutations_ingest import INGEST
from mutations_jobs import JOBS
from mutations_merge import MERGE
from mutations_merge_shared import MERGE_SHARED
from mutations_policy import POLICY
from mutations_read import READ
from mutations_store import STORE

__all__ = ["MUTATIONS", "Change", "Mutation"]

MUTATIONS = (
    *GARBAGE,
    *MERGE,
    *MERGE_SHARED,
    *POLICY,
    *INDEXES,
    *INGEST,
    *STORE,
    *READ,
    *JOBS,
    *AIRFLOW,
)
