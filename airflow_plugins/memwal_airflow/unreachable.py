"""Tables whose store gave a DAG's plan no answer, and when each of them is tried again.

What a task keeps ends with its run, so this is in a variable of Airflow's: one a DAG, and none
while every table can be reached. Whoever deletes it lets the next run try them all.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import Variable
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

# The first failed look gives a table a merge task, whose own retries bridge a short outage.
_FIRST_WAIT = timedelta(minutes=15)
_WAIT_MAX = timedelta(hours=1)
# A run that comes a little early tries, too.
_SLACK = timedelta(minutes=1)
# Of a table that no run has named for so long, nothing is kept.
_KEPT = timedelta(days=1)


class Away(BaseModel):
    """One such table: since when, and how often it was tried."""

    model_config = ConfigDict(frozen=True)

    since: AwareDatetime
    tries: int = Field(ge=1)
    next_try_at: AwareDatetime

    def waits(self, now: datetime) -> bool:
        """Whether it is to be left alone still."""
        return now < self.next_try_at <= now + _WAIT_MAX


_STORED = TypeAdapter(dict[str, Away])


def put_off(before: Away | None, now: datetime) -> Away:
    """After another failed look."""
    tries = 1 if before is None else before.tries + 1
    wait = min(_WAIT_MAX, _FIRST_WAIT * 2 ** min(tries - 1, 10)) - _SLACK
    return Away(since=before.since if before else now, tries=tries, next_try_at=now + wait)


def read_away(dag_id: str) -> dict[str, Away]:
    """What is known, by table; nothing where that can't be understood."""
    try:
        return _STORED.validate_json(Variable.get(_name(dag_id), default="{}"))
    except ValidationError:
        return {}


def write_away(dag_id: str, found: dict[str, Away], now: datetime) -> None:
    """Remember them."""
    kept = {name: away for name, away in found.items() if now - away.next_try_at < _KEPT}
    if kept:
        text = _STORED.dump_json(kept, indent=2).decode()
        Variable.set(_name(dag_id), text, "Tables that memwal could not reach; may be deleted")
    else:
        Variable.delete(_name(dag_id))


def _name(dag_id: str) -> str:
    return f"memwal_unreachable_{dag_id}"[:250]
