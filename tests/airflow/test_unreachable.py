"""A plan and the tables whose store does not answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from memwal_airflow.operators.plan import MemWalPlanOperator, read_away

from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import run_one
from tests.airflow.stand_in import StandIn

pytestmark = pytest.mark.integration

KEY = "memwal_unreachable_own"


@dataclass
class Lake:
    """What is said of its tables, and runs of a plan that asks."""

    home: InProcessAirflow
    stand_in: StandIn
    tables: dict[str, Any] = field(default_factory=dict)

    def put(self, name: str, *, reachable: bool = True) -> None:
        well = {"table": name, "outcome": "done", "due": True}
        away = {"table": name, "outcome": "failed", "error": "gave up", "unreachable": True}
        self.tables[name] = well if reachable else away

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
    made = Lake(airflow_home, stand_in)
    made.put("away", reachable=False)
    made.put("orders")
    return made


def test_an_unreachable_table_is_named_once_and_then_left_alone(
    lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    from airflow.models.variable import Variable

    names = ("away", "orders")
    # Its merge says what is wrong, and comes after the others'.
    assert lake.plan(*names) == (["orders", "away"], [names])
    assert "away is unreachable: gave up" in "".join(capfd.readouterr())
    assert lake.plan(*names) == (["orders"], [("orders",)])
    assert "away: unreachable, left alone till 20" in "".join(capfd.readouterr())
    # A run on some tables forgets nothing of the others.
    assert lake.plan("orders") == (["orders"], [("orders",)])
    lake.put("away")
    for hours in (-0.1, 9_999):  # one that nobody wrote, or by a clock that was ahead
        till = datetime.now(UTC) + timedelta(hours=hours)
        Variable.set(KEY, json.dumps({"away": till.isoformat()}))
        assert lake.plan(*names) == (["away", "orders"], [names])
    assert Variable.get(KEY, default_var=None) is None


@pytest.mark.nightly
def test_what_hangs_is_unreachable_and_rows_that_came_in_are_a_reason_to_try(lake: Lake) -> None:
    names = ("away", "orders")
    lake.tables["away"] = "hangs"
    hasty = {"seconds_max": 2, "seconds_per_table_max": 2}
    due, looks = lake.plan(*names, **hasty)
    assert (due, looks) == (["orders", "away"], [("away",), names, ("orders",)])

    class Arrived(MemWalPlanOperator):
        def execute(self, context: Any) -> list[str]:
            event = SimpleNamespace(extra={"table": "away"})
            return super().execute({**context, "triggering_asset_events": {"": [event]}})

    lake.put("away")
    assert lake.plan("away", kind=Arrived) == (["away"], [("away",)])


@pytest.mark.parametrize("text", ["", "[]", '{"orders": []}'])
def test_a_memory_that_makes_no_sense_keeps_no_table_back(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(f"AIRFLOW_VAR_{KEY.upper()}", text)
    assert read_away("own") == {}
