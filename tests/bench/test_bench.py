"""What could make the benchmark's figures wrong, and one case from the command to its results."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest

from bench.counted_s3 import CountedS3
from bench.harness import ROOT, Bench, Target, run_peak
from memwal.clock import SystemClock
from memwal.store.objects.opening import open_objects


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
    bench = Bench(folder=tmp_path, quick=True, rounds=1)
    bench.figure("B0", "what", value, "x", **target)
    assert bench.figures[0].met is met
    assert bench.figures[0].target == Target(**target)


def test_rounds_go_in_turns_and_medians_are_kept(tmp_path: Path) -> None:
    order: list[str] = []
    told = {"slow": iter([1.0, 5.0, 2.0]), "fast": cycle([0.5])}

    def run(name: str) -> float:
        order.append(name)
        return next(told[name])

    bench = Bench(folder=tmp_path, quick=True, rounds=3)
    seconds = bench.side_by_side({name: lambda n=name: run(n) for name in told})
    assert seconds == {"slow": 2.0, "fast": 0.5}
    assert order == ["slow", "fast", "fast", "slow", "slow", "fast"]
    bench.ratio("B0", "ours", seconds, "fast", "slow")
    bench.ratio("B0", "theirs", seconds, "fast", "slow", inverse=True)
    assert [figure.value for figure in bench.figures] == [0.25, 4.0]


@pytest.mark.nightly
def test_peak_memory_is_the_child_s_own() -> None:
    held = bytes(300_000_000)
    small, _ = run_peak("print(1)")
    large, ended = run_peak(f"x = b'1' * {len(held)}; print(2)")
    assert small < 100e6 < len(held) < large
    assert ended.json() == 2
    with pytest.raises(RuntimeError, match="ended with 3"):
        run_peak("raise SystemExit(3)")


@pytest.mark.nightly
def test_the_s3_server_counts_each_request_and_byte(tmp_path: Path) -> None:
    (tmp_path / "of the table").write_bytes(b"12345")
    with CountedS3() as server:
        objects = open_objects(server.place(tmp_path), server.storage_options, SystemClock())
        server.forget()
        for _ in range(2):
            assert objects.get("of the table") == b"12345"
        seen = server.seen()
        assert (seen.kinds, seen.bytes_sent, seen.bytes_received) == ({"get": 2}, 0, 10)
        assert seen.shapes == {"GET t/of the table": 2}
        objects.put_parts("large", [bytes(6_000_000), bytes(1_000)])
        objects.delete(["large"])
        seen = server.seen()
        assert seen.kinds == {"get": 2, "post": 2, "put": 2, "delete": 1}
        assert 0 < seen.bytes_sent - 6_001_000 < 1_000
        assert seen.requests == 7


@pytest.mark.nightly
def test_a_case_is_run_and_reported(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    words = [sys.executable, "-m", "bench.run", "--quick", "--output", output, "ingest"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    results = json.loads(output.read_text())
    (case,) = results["cases"]
    met = [figure["met"] for figure in case["figures"]]
    assert done.returncode == (0 if all(met) else 3), done.stderr
    assert None not in met
    assert {figure["case"] for figure in case["figures"]} == {"B12"}
    for figure in case["figures"]:
        assert figure["what"] in output.with_suffix(".md").read_text()
    plot = tmp_path / "plots" / "targets.png"
    assert plot.read_bytes().startswith(b"\x89PNG")
