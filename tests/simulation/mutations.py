"""Named mutations: each switches one safety check off; the tests or the simulation must notice.

A mutation is text in a file and what it becomes, on a copy of the sources; text that is not found
exactly once is an error, so the list can't rot. The lists are by module: `mutations_*.py`.
"""

from __future__ import annotations

from tests.simulation.mutation_list import Change, Mutation
from tests.simulation.mutations_airflow import AIRFLOW
from tests.simulation.mutations_audit import AUDIT
from tests.simulation.mutations_backup import BACKUP
from tests.simulation.mutations_bad_values import BAD_VALUES
from tests.simulation.mutations_checkpoint import CHECKPOINT
from tests.simulation.mutations_clones import CLONES
from tests.simulation.mutations_damage import DAMAGE
from tests.simulation.mutations_erase import ERASE
from tests.simulation.mutations_expire import EXPIRE
from tests.simulation.mutations_garbage import GARBAGE
from tests.simulation.mutations_indexes import INDEXES
from tests.simulation.mutations_ingest import INGEST
from tests.simulation.mutations_jobs import JOBS
from tests.simulation.mutations_looks import LOOKS
from tests.simulation.mutations_merge import MERGE
from tests.simulation.mutations_merge_shared import MERGE_SHARED
from tests.simulation.mutations_newer import NEWER
from tests.simulation.mutations_policy import POLICY
from tests.simulation.mutations_quiesce import QUIESCE
from tests.simulation.mutations_read import READ
from tests.simulation.mutations_repair import REPAIR
from tests.simulation.mutations_restore import RESTORE
from tests.simulation.mutations_spec import SPEC
from tests.simulation.mutations_store import STORE
from tests.simulation.mutations_watch import WATCH

__all__ = ["MUTATIONS", "Change", "Mutation"]

MUTATIONS = (
    *GARBAGE,
    *DAMAGE,
    *BACKUP,
    *CHECKPOINT,
    *MERGE,
    *MERGE_SHARED,
    *POLICY,
    *EXPIRE,
    *INDEXES,
    *BAD_VALUES,
    *INGEST,
    *STORE,
    *READ,
    *QUIESCE,
    *REPAIR,
    *ERASE,
    *JOBS,
    *LOOKS,
    *CLONES,
    *NEWER,
    *WATCH,
    *SPEC,
    *RESTORE,
    *AIRFLOW,
    *AUDIT,
)
