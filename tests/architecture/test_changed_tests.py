"""`make test-changed` runs what is near a change, and no more than there is time for; the durations
that it goes by are kept by `--record-durations`.
"""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

from scripts import changed_tests as changed
from tests.support import durations

PLAN = "memwal/jobs/merge/plan.py"
OF_PAGES = ["tests/architecture/test_pages.py", "tests/architecture/test_tidy.py"]
TEXTS = {
    "tests/airflow/test_page_list.py": "",
    **dict.fromkeys(OF_PAGES, ""),
    "tests/cli/test_names.py": "",
    "tests/cli/test_merge.py": "",
    "tests/ingest/test_far.py": "",
    "tests/jobs/merge/test_merge_plan.py": "",
    "tests/jobs/merge/test_turns.py": "",
    "tests/read/test_demo.py": "scripts/demo_writer.py is started",
    "tests/read/test_near.py": "",
    "tests/store/test_lease.py": "",
}
TOOK = {"tests/cli/test_names.py": 1.0, "tests/jobs/merge/test_turns.py": 20.0}
# `near` imports the plan, `far` a module that does, `test_lease` nothing of it.
IMPORTS = (
    ("tests.read.test_near", "memwal.jobs.merge.plan"),
    ("memwal.jobs.merge.job", "memwal.jobs.merge.plan"),
    ("tests.ingest.test_far", "memwal.jobs.merge.job"),
    ("tests.store.test_lease", "memwal.store.lease"),
)


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        (PLAN, ["jobs/merge/test_merge_plan", "jobs/merge/test_turns", "read/test_near",
                "ingest/test_far"]),
        ("memwal/cli/merge.py", ["cli/test_merge", "jobs/merge/test_merge_plan", "cli/test_names",
                                 "jobs/merge/test_turns"]),
        ("memwal/store/records/new.py", ["store/test_lease"]),
        ("memwal/GUIDE.md", ["architecture/test_pages", "architecture/test_tidy"]),
        ("scripts/demo_writer.py", ["read/test_demo", "architecture/test_pages",
                                    "architecture/test_tidy"]),
        ("airflow_plugins/memwal_airflow/page/rows.py", ["airflow/test_page_list"]),
        ("tests/store/test_lease.py", ["store/test_lease"]),
        ("tests/store/conftest.py", ["store/test_lease"]),
        ("tests/store/test_that_is_gone.py", []),
    ],
)  # fmt: skip
def test_the_mirrored_folder_comes_first_and_then_by_distance(file: str, wanted: list[str]) -> None:
    graph = grimp.ImportGraph()
    for test in TEXTS:
        graph.add_module(str(changed.module_of(test)))
    for importer, imported in IMPORTS:
        graph.add_import(importer=importer, imported=imported)
    found = [test for test, _ in changed.order([file], graph, TEXTS, TOOK)]
    assert found == [f"tests/{name}.py" for name in wanted]


def test_a_module_that_is_loaded_by_name_is_reached_through_its_loader() -> None:
    graph = changed.build_graph()
    reached = changed.find_distances(graph, ["memwal.cli.status"])
    assert reached["memwal.cli.commands"] == 1
    assert "tests.cli.test_commands" in reached


def test_no_more_is_run_than_there_is_time_for() -> None:
    took = {"a": 60.0, "b": 500.0, "c": 100.0, "d": 50.0, "e": 40.0, "tests/airflow/f": 20.0}
    found = changed.choose([*took, "new"], took, seconds_max=180, processes=2)
    assert found.run == ("a", "c", "d", "e", "tests/airflow/f", "new")
    assert found.left_out == ("b",)
    assert found.seconds == changed.START_SECONDS + (100 + 40) + 20
    assert changed.choose([], took, seconds_max=180, processes=2).run == ()


# ---- durations


def test_durations_are_renewed_for_what_ran_and_forgotten_for_what_is_gone(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    kept = tmp_path / "durations.json"
    durations.merge(kept, {"b.py": {"test": 1.26}, "gone.py": {"test": 3.0}}, tmp_path)
    assert durations.read(kept) == {"b.py": {"test": 1.3}}
    durations.merge(kept, {"a.py": {"test": 2.0}, "b.py": {"nightly": 7.0}}, tmp_path)
    assert list(durations.read(kept).items()) == [
        ("a.py", {"test": 2.0}),
        ("b.py", {"test": 1.3, "nightly": 7.0}),
    ]
    assert durations.read(tmp_path / "none.json") == {}


def test_parts_take_equally_long_and_together_are_all() -> None:
    took = {"a": 60.0, "b": 50.0, "c": 40.0, "d": 30.0}
    assert durations.split(took, 2) == [{"a", "d"}, {"b", "c"}]
