"""`make test-changed` runs what is near a change, and no more than there is time for; the durations
that it goes by are kept by `--record-durations`.
"""

from __future__ import annotations

import json
from pathlib import Path

import grimp
import pytest

from scripts import changed_tests as changed
from tests.support import durations

SHARD = "memwal/jobs/merge/plan.py"
TEXTS = {
    "tests/airflow/test_page_list.py": "",
    "tests/architecture/test_pages.py": "",
    "tests/architecture/test_tidy.py": "",
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


@pytest.fixture
def graph() -> grimp.ImportGraph:
    """`near` imports the plan, `far` a module that does, `test_lease` nothing of it."""
    made = grimp.ImportGraph()
    for test in TEXTS:
        made.add_module(str(changed.module_of(test)))
    for importer, imported in (
        ("tests.read.test_near", "memwal.jobs.merge.plan"),
        ("memwal.jobs.merge.job", "memwal.jobs.merge.plan"),
        ("tests.ingest.test_far", "memwal.jobs.merge.job"),
        ("tests.store.test_lease", "memwal.store.lease"),
    ):
        made.add_import(importer=importer, imported=imported)
    return made


def order(graph: grimp.ImportGraph, *files: str) -> list[str]:
    return [test for test, _ in changed.order(files, graph, TEXTS, TOOK)]


def test_the_mirrored_folder_comes_first_and_then_by_distance(graph: grimp.ImportGraph) -> None:
    assert order(graph, SHARD) == [
        "tests/jobs/merge/test_merge_plan.py",
        "tests/jobs/merge/test_turns.py",
        "tests/read/test_near.py",
        "tests/ingest/test_far.py",
    ]


def test_a_command_has_its_jobs_tests_too(graph: grimp.ImportGraph) -> None:
    assert order(graph, "memwal/cli/merge.py") == [
        "tests/cli/test_merge.py",
        "tests/jobs/merge/test_merge_plan.py",
        "tests/cli/test_names.py",
        "tests/jobs/merge/test_turns.py",
    ]


def test_a_file_below_a_mirrored_folder_has_the_next_one_up(graph: grimp.ImportGraph) -> None:
    assert order(graph, "memwal/store/records/new.py") == ["tests/store/test_lease.py"]


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        (
            "memwal/GUIDE.md",
            ["tests/architecture/test_pages.py", "tests/architecture/test_tidy.py"],
        ),
        (
            "scripts/demo_writer.py",
            [
                "tests/read/test_demo.py",
                "tests/architecture/test_pages.py",
                "tests/architecture/test_tidy.py",
            ],
        ),
        ("airflow_plugins/memwal_airflow/page/rows.py", ["tests/airflow/test_page_list.py"]),
        ("tests/store/test_lease.py", ["tests/store/test_lease.py"]),
        ("tests/store/conftest.py", ["tests/store/test_lease.py"]),
        ("tests/store/test_that_is_gone.py", []),
    ],
)
def test_what_is_no_module_of_a_job(graph: grimp.ImportGraph, file: str, wanted: list[str]) -> None:
    assert order(graph, file) == wanted


def test_a_change_is_what_is_not_committed_or_else_what_main_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(changed, "ROOT", tmp_path)

    def commit(name: str) -> str:
        (tmp_path / name).write_text(name)
        changed.git("add", "-A")
        changed.git("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", name)
        return changed.git("rev-parse", "HEAD")[0]

    def since(asked: str | None = None) -> list[str]:
        return changed.find_changed(changed.find_base(asked))

    changed.git("init", "-q", "-b", "main")
    commit("first")
    commit("of main")
    assert since() == ["of main"]
    changed.git("checkout", "-qb", "work")
    commit("of work")
    commit("more of work")
    assert since() == ["more of work", "of work"]
    (tmp_path / "first").unlink()
    (tmp_path / "new").touch()
    assert since() == ["first", "new"]
    assert since("main") == ["first", "more of work", "new", "of work"]


def test_a_module_that_is_loaded_by_name_is_reached_through_its_loader() -> None:
    graph = changed.build_graph()
    reached = changed.find_distances(graph, ["memwal.cli.status"])
    assert reached["memwal.cli.commands"] == 1
    assert "tests.cli.test_commands" in reached
    nearest = changed.order([SHARD], graph, {"tests/jobs/merge/test_merge_plan.py": ""}, {})
    assert nearest == [("tests/jobs/merge/test_merge_plan.py", (changed.NAMED, 1))]


def test_no_more_is_run_than_there_is_time_for() -> None:
    took = {"a": 60.0, "b": 500.0, "c": 100.0, "d": 50.0, "e": 40.0, "tests/airflow/f": 20.0}
    found = changed.choose([*took, "new"], took, seconds_max=180, processes=2)
    assert found.run == ("a", "c", "d", "e", "tests/airflow/f", "new")
    assert found.left_out == ("b",)
    assert found.seconds == changed.START_SECONDS + (100 + 40) + 20
    assert changed.choose([], took, seconds_max=180, processes=2).run == ()


def test_durations_are_renewed_for_what_ran_and_forgotten_for_what_is_gone(tmp_path: Path) -> None:
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).touch()
    kept = tmp_path / "durations.json"
    durations.merge(kept, {"test_b.py": 1.26, "gone.py": 3.0}, tmp_path)
    assert durations.read(kept) == {"test_b.py": 1.3}
    durations.merge(kept, {"test_a.py": 20.0}, tmp_path)
    assert list(durations.read(kept).items()) == [("test_a.py", 20.0), ("test_b.py", 1.3)]
    assert durations.read(tmp_path / "none.json") == {}


def test_they_are_recorded_in_this_process_and_from_others(tmp_path: Path) -> None:
    this = "tests/architecture/test_changed_tests.py"
    kept = tmp_path / "durations.json"
    words = ["-q", "-p", "no:cacheprovider", "-k", "renewed", "--record-durations", str(kept)]
    for processes in ("0", "1"):
        kept.unlink(missing_ok=True)
        assert pytest.main([*words, "-n", processes, str(durations.ROOT / this)]) == 0
        assert json.loads(kept.read_text()).keys() == {this}


def test_the_longest_start_first_and_before_them_what_nobody_measured() -> None:
    took = {"tests/a.py": 1.0, "tests/b.py": 2.0}
    paths = [durations.ROOT / "tests" / name for name in ("a.py", "b.py", "new.py")]
    paths.sort(key=lambda path: durations.rank(path, took))
    assert [path.name for path in paths] == ["new.py", "b.py", "a.py"]
