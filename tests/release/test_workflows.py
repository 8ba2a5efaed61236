"""What runs in CI and at a release is well-formed, asks for little, and calls what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def read(workflow: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    return yaml.load(workflow.read_text(), yaml.BaseLoader)  # type: ignore[no-any-return]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "command",
    [
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS],
        ["check-jsonschema", "--builtin-schema", "vendor.dependabot", GITHUB / "dependabot.yml"],
        ["zizmor", "--offline", "--no-progress", "--quiet", GITHUB],
        ["hadolint", ROOT / "Containerfile"],
    ],
    ids=["workflows", "dependabot", "safe", "containerfile"],
)
def test_a_linter_finds_nothing(command: list[str | Path]) -> None:
    program = Path(sys.executable).with_name(str(command[0]))
    done = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_they_make_is_a_target() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for workflow in WORKFLOWS:
        made = re.findall(r"\bmake ([a-z-]+)", workflow.read_text())
        assert made and set(made) <= set(targets), workflow


def test_actions_are_pinned() -> None:
    used = [name for w in WORKFLOWS for name in re.findall(r"uses: (\S+)", w.read_text())]
    assert used and all(re.fullmatch(r"[\w./-]+@v\d+(\.\d+)*", name) for name in used)


def test_publishing_is_trusted_by_name_and_nothing_else() -> None:
    release = read(GITHUB / "workflows" / "release.yml")
    publish = release["jobs"]["publish"]
    assert release["on"] == {"push": {"tags": ["v*"]}}
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"]
    assert publish["needs"] == "build"
    assert "secrets." not in "".join(workflow.read_text() for workflow in WORKFLOWS)
    packages = publish["strategy"]["matrix"]["package"]
    names = [
        re.findall(r'^name = "(.*)"$', (ROOT / project).read_text(), re.MULTILINE)[0]
        for project in ("pyproject.toml", "airflow_plugins/pyproject.toml")
    ]
    assert packages == names
    kept = [
        step["with"] for step in release["jobs"]["build"]["steps"] if "name" in step.get("with", {})
    ]
    assert [each["name"] for each in kept] == names
    assert [each["path"] for each in kept] == [f"dist/{n.replace('-', '_')}-*" for n in names]


def test_ci_runs_on_the_oldest_and_the_newest_python_that_we_name() -> None:
    (matrix,) = re.findall(r"python: (\[.*?\])", (GITHUB / "workflows/checks.yml").read_text())
    named = re.findall(r":: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert yaml.load(matrix, yaml.BaseLoader) == [named[0], named[-1]]
