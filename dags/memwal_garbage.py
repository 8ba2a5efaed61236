"""Collects garbage where indexes caught up, and daily everywhere. Lists it only, unless
`garbage_execute = true` stands in `[airflow]`.
"""

from airflow.sdk import dag
from memwal_airflow.asset_events import INDEXED
from memwal_airflow.forms import asked_tables, run_fields, run_params
from memwal_airflow.settings import dag_config
from memwal_airflow.task_groups import event_schedule, mapped_job

CONFIG = dag_config()


@dag(
    schedule=event_schedule(INDEXED, CONFIG, or_cron=CONFIG.airflow.garbage_schedule),
    catchup=False,
    max_active_runs=1,
    params=run_params(CONFIG, "garbage"),
    tags=["memwal"],
    doc_md=__doc__,
)
def memwal_garbage():
    """The tables of the events, or all, then their garbage."""
    mapped_job("garbage", asked_tables(), CONFIG, **run_fields("garbage"))


memwal_garbage()
