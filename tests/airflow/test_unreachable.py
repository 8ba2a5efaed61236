"""A plan and the tables whose store does not answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from memwal_airflow.operators.plan import MemWalPlanOperator

from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import run_one
from tests.airflow.stand_in import StandIn

pytestmark = pytest.mark.integration


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

    def plan(self, *names: str, **fields: Any) -> tuple[list[str], list[tuple[str, ...]]]:
        """The tables that are due, and those of each look that it took to find out."""
        self.stand_in.answer({"tables": self.tables})
        ran = run_one(self.home, MemWalPlanOperator, tables=names, **fields)
        assert ran.state == "success"
        return ran.xcom("job"), sorted(self.stand_in.asked)


@pytest.fixture
def lake(airflow_home: InProcessAirflow, stand_in: StandIn) -> Lake:
    made = Lake(airflow_home, stand_in)
    made.put("away", reachable=False)
    made.put("orders")
    return made


def test_an_unreachable_table_is_left_to_the_next_run(
    lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("away", "orders")
    assert lake.plan(*names) == (["orders"], [names])
    assert "away is unreachable, left to the next run: gave up" in "".join(capfd.readouterr())
    lake.put("away")
    assert lake.plan(*names) == (["away", "orders"], [names])


def test_a_plan_is_tried_again_if_no_store_answers(
    airflow_home: InProcessAirflow, lake: Lake
) -> None:
    lake.stand_in.answer({"tables": lake.tables})
    ran = run_one(airflow_home, MemWalPlanOperator, tables=["away"], retries=1)
    assert ran.tried == ("failed", 2)
