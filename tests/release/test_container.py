"""The Containerfile: its steps are followed in a bare folder, and what they make is run.

As another user and on a read-only root where this is root, as far as can be without a builder of
images. Packages come from this environment: their versions are those of constraints.txt, too.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from scripts.dist import build_project
from tests.support import builders
from tests.support.builders import Put
from tests.support.containerfile import STAGES, last, steps_of

ROOT = Path(__file__).resolve().parents[2]
# What belongs to the system below, which is the base image's affair.
SYSTEM = ("apt-get", "groupadd")
TOOLS = re.compile(r"\b(gcc|g\+\+|make|build-essential|pip|venv|\w+-dev)\b")
STOP_SECONDS_MAX = 30
PACKAGES = sysconfig.get_path("purelib")
# $1 is writable, $2 are packages, which may lie in /tmp, and $3 where they are found.
CONFINED = """
mount --bind "$1" "$1"
mount --bind "$2" "$3"
mount -o remount,bind,ro /
mount -t tmpfs tmpfs /tmp
cd /
shift 3
exec setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs \
    --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search -- "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Image:
    """What following the steps has made: where `/` would be, and what is run in it."""

    folder: Path
    variables: dict[str, str]
    entrypoint: list[str]

    def place(self, text: str) -> str:
        """With the folders of the image where they are here."""
        return re.sub(r"(?<![\w.])/(opt|wheels|etc/memwal)\b", rf"{self.folder}/\1", text)

    def command(self, *words: str, writable: Path) -> list[str]:
        command = [self.place(self.entrypoint[0]), *self.entrypoint[1:], *words]
        if not can_confine():
            return command
        mounts = (str(writable), PACKAGES, str(self.folder / "rest"))
        return ["unshare", "--mount", "bash", "-ec", CONFINED, "-", *mounts, *command]


@cache
def can_confine() -> bool:
    tried = ["unshare", "--mount", "mount", "--bind", "/", "/"]
    tools = all(map(shutil.which, ("unshare", "setpriv")))
    return tools and os.geteuid() == 0 and subprocess.run(tried, check=False).returncode == 0


def is_sent(file: Path, context: Path) -> bool:
    """Whether .dockerignore lets a builder see it."""
    first, *kept = (ROOT / ".dockerignore").read_text().split()
    assert first == "*"
    name = str(file.relative_to(context))
    return any(fnmatch.fnmatch(name, pattern.removeprefix("!")) for pattern in kept)


def follow(image: Image, context: Path) -> None:
    """The steps of the target without Spark."""
    for instruction, value in steps_of("memwal"):
        if instruction == "COPY":
            *sources, target = value.split()
            folder = Path(image.place(target))
            folder.mkdir(parents=True, exist_ok=True)
            for source in sources:
                (file,) = context.glob(source)
                assert is_sent(file, context)
                shutil.copy(file, folder)
        elif instruction == "ENV":
            for name, text in re.findall(r"(\w+)=(\S+)", value):
                image.variables[name] = image.place(text).replace("$PATH", image.variables["PATH"])
        elif instruction == "RUN" and not value.startswith(SYSTEM):
            subprocess.run(["sh", "-ec", image.place(value)], env=image.variables, check=True)


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """Not below pytest's folder: that may be in /tmp, which is empty in the image."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        context = folder / "context"
        build_project(ROOT, context / "dist", "315532800")
        shutil.copy(ROOT / "constraints.txt", context)
        # pip is asked for what the steps ask for, and may fetch nothing.
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_CONFIG_FILE": os.devnull}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        made = Image(
            folder=folder,
            variables={"PATH": path, **offline},
            entrypoint=json.loads(last("memwal", "ENTRYPOINT")),
        )
        follow(made, context)
        (packages,) = (folder / "opt" / "memwal").glob("lib/python*/site-packages")
        (folder / "rest").mkdir()
        (packages / "rest.pth").write_text(f"{folder / 'rest' if can_confine() else PACKAGES}\n")
        yield made


def run(image: Image, *words: str) -> str:
    done = subprocess.run(
        image.command(*words, writable=image.folder),
        env=image.variables, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
def test_it_is_the_wheel_that_runs(image: Image) -> None:
    assert run(image, "--version").startswith("memwal ")
    assert "--dry-run" in run(image, "merge", "--help")
    (packages,) = (image.folder / "opt" / "memwal").glob("lib/python*/site-packages")
    assert (packages / "memwal" / "cli" / "__init__.py").is_file()
    assert list(packages.glob("lance_memwal-*.dist-info/licenses/LICENSE"))


@pytest.mark.nightly
def test_a_watch_merges_and_stops(image: Image) -> None:
    lake = image.folder / "lake"
    table = builders.make_table(lake, rows=range(20))
    table.flush(table.shards[0], Put([1, 30], 1))
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "10001:10001", lake], check=True)
    words = ("watch", table.uri, "--freshness", "1s", "--json")
    with subprocess.Popen(
        image.command(*words, writable=lake),
        env=image.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as watch:  # fmt: skip
        assert watch.stdout and watch.stderr
        merged = any(json.loads(line)["event"] == "merge" for line in watch.stdout)
        asked = time.monotonic()
        watch.send_signal(signal.SIGTERM)
        _, told = watch.communicate(timeout=STOP_SECONDS_MAX)
    assert (merged, watch.returncode) == (True, 0), told
    assert time.monotonic() - asked < STOP_SECONDS_MAX
    builders.check_merged(table)


@pytest.mark.parametrize("target", ["memwal", "spark"])
def test_a_target_has_no_root_and_no_build_tools(target: str) -> None:
    assert STAGES[target].steps[-1][0] == "USER"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", STAGES[target].values("USER")[-1])
    own = [*STAGES[target].values("RUN"), *STAGES["base"].values("RUN")]
    assert not [found for value in own for found in TOOLS.findall(value)]


def test_both_targets_differ_by_spark_alone() -> None:
    assert STAGES["memwal"].parent == STAGES["spark"].parent == "base"
    for name in ("ENTRYPOINT", "WORKDIR", "USER"):
        assert last("memwal", name) == last("spark", name)
    assert "jre" in STAGES["spark"].values("RUN")[0]
    assert list(STAGES)[-1] == "memwal", "what is built where no target is named"
