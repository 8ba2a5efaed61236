"""Tables whose store gave a DAG's plan no answer, and when each is tried again.

Task state ends with a run, so this is kept in an Airflow variable: one for each DAG, and none while
every table can be reached. If it is deleted, the next run tries all tables.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import Variable
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

# After the first failed look the table still gets a merge task, whose own retries bridge a short
# outage.
_FIRST_WAIT = timedelta(minutes=15)
_WAIT_MAX = timedelta(hours=1)
# So that a run which starts a little early tries as well.
_SLACK = timedelta(minutes=1)
# A table that no run has named for this long is forgotten.
_KEPT = timedelta(days=1)


class Away(BaseModel):
    """An unreachable table: since when, how often it was tried, and when it is tried next."""

    model_config = ConfigDict(frozen=True)

    since: AwareDatetime
    tries: int = Field(ge=1)
    next_try_at: AwareDatetime

    def waits(self, now: datetime) -> bool:
        """Whether to leave the table alone for now."""
        return now < self.next_try_at <= now + _WAIT_MAX

    def show(self) -> tuple[str, str]:
        """Since when, and till when it is left alone."""
        since, till = (f"{at:%Y-%m-%d %H:%M:%S} UTC" for at in (self.since, self.next_try_at))
        return since, till


_STORED = TypeAdapter(dict[str, Away])


def put_off(before: Away | None, now: datetime) -> Away:
    """Return the table's entry after another failed look; `before` is None for the first."""
    tries = 1 if before is None else before.tries + 1
    wait = min(_WAIT_MAX, _FIRST_WAIT * 2 ** min(tries - 1, 10)) - _SLACK
    return Away(since=before.since if before else now, tries=tries, next_try_at=now + wait)


def read_away(dag_id: str) -> dict[str, Away]:
    """Read the unreachable tables of a DAG; none if the variable can't be understood."""
    try:
        return _STORED.validate_json(Variable.get(_name(dag_id), default="{}"))
    except ValidationError:
        return {}


def write_away(dag_id: str, found: dict[str, Away], now: datetime) -> None:
    """Store the unreachable tables of a DAG, without those that no run has named for a day."""
    kept = {name: away for name, away in found.items() if now - away.next_try_at < _KEPT}
    if kept:
        text = _STORED.dump_json(kept, indent=2).decode()
        Variable.set(_name(dag_id), text, "Tables that memwal could not reach; may be deleted")
    else:
        Variable.delete(_name(dag_id))


def _name(dag_id: str) -> str:
    return f"memwal_unreachable_{dag_id}"[:250]
