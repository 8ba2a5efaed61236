"""A plan and the tables whose store does not answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from memwal_airflow.operators.plan import MemWalPlanOperator
from memwal_airflow.unreachable import Away, put_off, read_away

from tests.airflow import page_samples as samples
from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import run_one
from tests.airflow.stand_in import StandIn

pytestmark = pytest.mark.integration

KEY = "memwal_unreachable_own"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Lake:
    """What is said of its tables, and runs of a plan that asks."""

    home: InProcessAirflow
    stand_in: StandIn
    tables: dict[str, Any] = field(default_factory=dict)

    def put(self, *names: str, reachable: bool = True) -> None:
        for name in names:
            status = samples.status(name, due=True)
            self.tables[name] = status if reachable else samples.unreachable(name)

    def plan(
        self, *names: str, kind: Any = MemWalPlanOperator, **fields: Any
    ) -> tuple[list[str], list[tuple[str, ...]]]:
        """The tables that are due, and those of each look that it took to find out."""
        self.stand_in.answer({"tables": self.tables})
        ran = run_one(self.home, kind, tables=names, **fields)
        assert ran.state == "success"
        return ran.xcom("job"), sorted(self.stand_in.asked)


@pytest.fixture
def lake(airflow_home: InProcessAirflow, stand_in: StandIn) -> Lake:
    return Lake(airflow_home, stand_in)


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

    lake.put("away")
    change(due_again("away"))
    assert lake.plan(*names) == (["away", "orders"], [("away",), ("orders",)])
    assert kept() is None
    assert lake.plan(*names) == (["away", "orders"], [names])


@pytest.mark.nightly
def test_what_hangs_is_unreachable_and_spoils_one_plan_only(lake: Lake) -> None:
    lake.put("orders")
    lake.tables["away"] = "hangs"
    names = ("away", "orders")
    hasty = {"seconds_max": 2, "seconds_per_table_max": 2, "seconds_apart_max": 2}
    due, looks = lake.plan(*names, **hasty)
    assert (due, looks) == (["orders", "away"], [("away",), names, ("orders",)])
    change(due_again("away"))
    due, looks = lake.plan(*names, **hasty)
    assert (due, looks) == (["orders", "away"], [("away",), ("orders",)])


@pytest.mark.nightly
def test_of_many_unreachable_tables_some_are_tried_in_each_run(lake: Lake) -> None:
    names = tuple(f"away-{n}" for n in range(6))
    lake.put(*names, reachable=False)
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
def test_a_memory_that_makes_no_sense_keeps_no_table_back(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(f"AIRFLOW_VAR_{KEY.upper()}", text)
    assert read_away("own") == {}


def test_nobody_is_left_alone_for_longer_than_the_limit() -> None:
    for hours, waits in ((-1, False), (0.9, True), (9_999, False)):
        later = NOW + timedelta(hours=hours)
        assert Away(since=NOW, tries=1, next_try_at=later).waits(NOW) is waits


def test_the_pauses_grow_up_to_an_hour() -> None:
    away, minutes = None, []
    for _ in range(5):
        away = put_off(away, NOW)
        minutes.append((away.next_try_at - NOW) / timedelta(minutes=1))
    assert minutes == [14, 29, 59, 59, 59]
    assert away is not None
    assert (away.since, away.tries) == (NOW, 5)
