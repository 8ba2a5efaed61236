"""A plan and the tables whose store does not answer; `memwal status` is a stand-in here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memwal_airflow.operators.plan import MemWalPlanOperator
from memwal_airflow.unreachable import put_off

from tests.airflow import page_samples as samples
from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import run_tasks

KEY = "memwal_unreachable_own"


@dataclass
class Lake:
    """What the stand-in says, and runs of a plan that asks it."""

    home: InProcessAirflow
    folder: Path

    def put(self, name: str, *, reachable: bool = True) -> None:
        found = samples.status(name, due=True) if reachable else samples.unreachable(name)
        samples.put(self.folder, found)

    def plan(
        self, *names: str, kind: Any = MemWalPlanOperator, **fields: Any
    ) -> tuple[list[str], list[tuple[str, ...]]]:
        """The tables that are due, and those of each look that it took to find out."""
        before = len(samples.calls(self.folder))
        fields = {"tables": names, "retries": 0, **fields}
        ran = run_tasks(self.home, lambda: kind(task_id="job", **fields))
        assert ran.state == "success"
        looks = [asked for _, asked in samples.calls(self.folder)[before:]]
        return ran.xcom("job"), sorted(looks)


@pytest.fixture
def lake(airflow_home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    command = samples.make_command(tmp_path / "command")
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(command))
    return Lake(airflow_home, tmp_path / "command")


def kept() -> dict[str, dict[str, Any]] | None:
    """What is remembered."""
    from airflow.models.variable import Variable

    found = Variable.get(KEY, default_var=None)
    return None if found is None else dict(json.loads(found))


def change(edit: Callable[[dict[str, dict[str, Any]]], object]) -> None:
    """Change what is remembered: time passes, or somebody edits it."""
    from airflow.models.variable import Variable

    found = kept() or {}
    edit(found)
    Variable.set(KEY, json.dumps(found))


def due_again(*names: str) -> Callable[[dict[str, dict[str, Any]]], object]:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    return lambda found: [found[name].update(next_try_at=past) for name in names]


def test_an_unreachable_table_is_named_at_each_try_and_left_alone_between(
    lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    lake.put("away", reachable=False)
    lake.put("orders")
    names = ("away", "orders")
    # Its merge says what is wrong, and comes after the others'.
    assert lake.plan(*names) == (["orders", "away"], [names])
    assert "away is unreachable: list s3://lake/away/: gave up" in "".join(capfd.readouterr())
    assert lake.plan(*names) == (["orders"], [("orders",)])
    assert "away: unreachable since 20" in "".join(capfd.readouterr())
    # A run on some tables forgets nothing of the others.
    assert lake.plan("orders") == (["orders"], [("orders",)])

    change(due_again("away"))
    assert lake.plan(*names) == (["orders", "away"], [("away",), ("orders",)])
    assert (kept() or {})["away"]["tries"] == 2
    assert lake.plan(*names) == (["orders"], [("orders",)])

    lake.put("away")
    change(due_again("away"))
    assert lake.plan(*names) == (["away", "orders"], [("away",), ("orders",)])
    assert kept() is None
    assert lake.plan(*names) == (["away", "orders"], [names])


def test_what_hangs_is_unreachable_and_spoils_one_plan_only(lake: Lake) -> None:
    lake.put("orders")
    names = ("hangs-1", "orders")
    hasty = {"seconds_max": 2, "seconds_per_table_max": 2, "seconds_apart_max": 2}
    due, looks = lake.plan(*names, **hasty)
    assert (due, looks) == (["orders", "hangs-1"], [("hangs-1",), names, ("orders",)])
    change(due_again("hangs-1"))
    due, looks = lake.plan(*names, **hasty)
    assert (due, looks) == (["orders", "hangs-1"], [("hangs-1",), ("orders",)])


def test_of_many_unreachable_tables_some_are_tried_in_each_run(lake: Lake) -> None:
    names = tuple(f"away-{n}" for n in range(6))
    for name in names:
        lake.put(name, reachable=False)
    assert lake.plan(*names) == (list(names), [names])
    change(due_again(*names))
    change(lambda found: found["away-5"].update(next_try_at="2026-01-01T00:00:00+00:00"))
    tried = ["away-0", "away-1", "away-2", "away-5"]
    assert lake.plan(*names) == (tried, [(name,) for name in tried])
    assert lake.plan(*names)[0] == ["away-3", "away-4"]


def test_rows_that_came_in_are_a_reason_to_try(lake: Lake) -> None:
    lake.put("away", reachable=False)
    lake.put("orders")
    lake.plan("away", "orders")

    class Arrived(MemWalPlanOperator):
        def execute(self, context: Any) -> list[str]:
            event = SimpleNamespace(extra={"table": "away"})
            return super().execute({**context, "triggering_asset_events": {"": [event]}})

    lake.put("away")
    assert lake.plan("away", kind=Arrived) == (["away"], [("away",)])
    assert kept() is None


@pytest.mark.parametrize("text", ["", "[]", '{"orders": {"tries": 0}}', '{"orders": 3}'])
def test_a_memory_that_makes_no_sense_keeps_no_table_back(lake: Lake, text: str) -> None:
    from airflow.models.variable import Variable

    lake.put("orders")
    Variable.set(KEY, text)
    assert lake.plan("orders") == (["orders"], [("orders",)])


def test_nobody_is_left_alone_for_longer_than_the_limit(lake: Lake) -> None:
    lake.put("orders", reachable=False)
    lake.plan("orders")
    change(lambda found: found["orders"].update(next_try_at="2999-01-01T00:00:00+00:00"))
    assert lake.plan("orders") == (["orders"], [("orders",)])


def test_the_pauses_grow_up_to_an_hour() -> None:
    now, away, minutes = datetime(2026, 1, 1, tzinfo=UTC), None, []
    for _ in range(5):
        away = put_off(away, now)
        minutes.append((away.next_try_at - now) / timedelta(minutes=1))
    assert minutes == [14, 29, 59, 59, 59]
    assert away is not None
    assert (away.since, away.tries) == (now, 5)
