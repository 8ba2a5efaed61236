"""The benchmark's own arithmetic: targets, turns, peak memory, tables and plots out of results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.harness import Bench, Target, program, run_process

HERE = Path(__file__).parent

pytestmark = pytest.mark.integration


def bench(folder: Path) -> Bench:
    return Bench(folder=folder, quick=True, rounds=3)


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        ({"at_most": 1.5}, 1.5, True),
        ({"at_most": 1.5}, 1.51, False),
        ({"at_most": 0}, 0, True),
        ({"at_least": 6}, 6.0, True),
        ({"at_least": 6}, 5.9, False),
        ({}, 5.9, None),
    ],
)
def test_a_figure_is_judged_by_its_target(
    tmp_path: Path, target: dict[str, float], value: float, met: bool | None
) -> None:
    run = bench(tmp_path)

    run.figure("B0", "what", value, "x", **target)

    assert run.figures[0].met is met
    assert run.figures[0].target == Target(**target)


def test_rounds_go_in_turns_and_medians_are_kept(tmp_path: Path) -> None:
    order: list[str] = []
    told = iter([1.0, 5.0, 2.0])

    def slow() -> float:
        order.append("slow")
        return next(told)

    def fast() -> float:
        order.append("fast")
        return 0.5

    seconds = bench(tmp_path).side_by_side({"slow": slow, "fast": fast})

    assert seconds == {"slow": 2.0, "fast": 0.5}
    assert order == ["slow", "fast", "fast", "slow", "slow", "fast"]


def test_peak_memory_is_the_process_own(tmp_path: Path) -> None:
    small = run_process([sys.executable, "-c", "print(1)"], tmp_path)
    large = run_process([sys.executable, "-c", "x = b'1' * 300_000_000; print(2)"], tmp_path)

    assert (small.json(), large.json()) == (1, 2)
    # Neither can be below this process's own: see `run_process`.
    assert large.rss_bytes_max > 300e6
    assert small.rss_bytes_max <= large.rss_bytes_max
    with pytest.raises(RuntimeError, match="ended with 3"):
        run_process([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_the_program_writes_results_and_plots(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, HERE / "run.py", "--quick", "--rounds", "1", "--output", output, "none"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "no such case: none" in done.stderr
    assert not output.exists()
    assert Path(program("memwal")).exists()


def test_results_are_drawn(tmp_path: Path) -> None:
    from tests.bench.plots import draw

    run = bench(tmp_path)
    run.figure("B0", "a ratio", 2.0, "x", at_most=1.5)
    run.figure("B0", "a count", 3.0, "requests", at_least=2)
    run.plot("growth", "ours", "rows", "seconds", [(1, 1), (10, 2)], log=True)
    results = {
        "cases": [
            {
                "figures": [
                    {"case": f.case, "what": f.what, "value": f.value, "unit": f.unit,
                     "target": vars(f.target), "met": f.met}
                    for f in run.figures
                ],
                "series": [vars(s) for s in run.series],
            }
        ]
    }  # fmt: skip

    written = draw(json.loads(json.dumps(results)), tmp_path / "plots")

    assert [file.name for file in written] == ["targets.png", "growth.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in written)
