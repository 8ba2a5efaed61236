"""Environments in which what is released is tried: on which Python, with which versions, how."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.quickstart import (
    INSTALLS,
    LANCEDBS,
    ROOT,
    SPARKS,
    BlockFailed,
    Reader,
    check_shown,
)

# pandas 2, which Spark's extra asks for, has no wheels for later ones.
SPARK_PYTHON_MAX = (3, 14)
# pyspark is an sdist; whatever else would have to be compiled is no version that can be had.
WHEELS_ONLY = ("--only-binary", ":all:", "--no-binary", "pyspark")
AIRFLOW_PINS = ROOT / "constraints-airflow.txt"
AIRFLOW = re.findall(r"^apache-airflow==(.*)$", AIRFLOW_PINS.read_text(), re.MULTILINE)[0]
OFFICIAL = f"https://raw.githubusercontent.com/apache/airflow/constraints-{AIRFLOW}"
SHOWN = ("pylance", "pyarrow", "numpy", "pydantic", "typer", "pyspark", "apache-airflow")
SECONDS_MAX = 1200
PROVIDER = """
import memwal_airflow
from importlib.metadata import distribution, entry_points
from memwal_airflow.provider import get_provider_info
assert get_provider_info()["package-name"] == "airflow-provider-lance-memwal"
assert "site-packages" in memwal_airflow.__file__
(plugin,) = [e for e in entry_points(group="airflow.plugins") if e.name == "memwal"]
plugin.load()
"""


class CannotBeHad(Exception):
    """It is not to be had on this machine, and why."""


@dataclass(frozen=True, kw_only=True)
class Had:
    """What came of a trial: `ok`, `FAILED` or `not had`, and what there is to say about it."""

    outcome: str
    seconds: float
    python: str = ""
    versions: str = ""
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One environment: what is installed, under which pins, and what is done in it."""

    name: str
    python: str
    wanted: tuple[str, ...]
    pins: Callable[[Path, Path], Path | None]
    use: Callable[[Path, Path], None]

    def run(self, folder: Path) -> Had:
        """Install and use it below `folder`."""
        started = time.monotonic()
        folder.mkdir()
        environment = folder / "environment"
        python = versions = said = ""
        try:
            interpreter = find_python(self.python)
            python = ask_version(interpreter)
            uv("venv", "--python", str(interpreter), str(environment))
            pins = self.pins(interpreter, folder)
            constraints = ("--constraint", str(pins)) if pins else ()
            uv("pip", "install", "--python", str(environment), *constraints, *self.wanted)
            versions = list_versions(environment)
            self.use(environment, folder)
            outcome = "ok"
        except CannotBeHad as error:
            outcome, said = "not had", str(error)
        except (BlockFailed, subprocess.SubprocessError) as error:
            outcome, said = "FAILED", f"{error}\n{getattr(error, 'stderr', None) or ''}"
        seconds = time.monotonic() - started
        return Had(outcome=outcome, seconds=seconds, python=python, versions=versions, said=said)


def list_trials(dist: Path) -> list[Trial]:
    """Everything in `dist`, on the oldest and on the newest Python."""
    (wheel,) = dist.glob("lance_memwal-*.whl")
    (sdist,) = dist.glob("lance_memwal-*.tar.gz")
    (provider,) = dist.glob("airflow_provider*.whl")
    (provider_sdist,) = dist.glob("airflow_provider*.tar.gz")
    oldest, newest = find_bounds()
    newest_spark = newest_of(SPARK_PYTHON_MAX)
    found = []
    for python in (oldest, newest_spark):
        for which, pins in (("oldest", lowest), ("newest", unpinned)):
            found.append(
                Trial(
                    name=f"wheel[spark,metrics], {which} versions", python=python,
                    wanted=(f"lance-memwal[spark,metrics] @ {wheel.as_uri()}",),
                    pins=pins, use=follow_quickstart,
                )
            )  # fmt: skip
    for python in (oldest, newest):
        found.append(
            Trial(
                name="sdist[jobs], newest versions", python=python,
                wanted=(f"lance-memwal[jobs] @ {sdist.as_uri()}",),
                pins=unpinned, use=follow_quickstart_without_spark,
            )
        )  # fmt: skip
    found.append(
        Trial(
            name="wheel[metrics], constraints.txt", python=newest_spark,
            wanted=(f"lance-memwal[metrics] @ {wheel.as_uri()}",),
            pins=pinned("constraints.txt"), use=follow_quickstart_without_spark,
        )
    )  # fmt: skip
    return found + list(providers(wheel, provider, provider_sdist, (oldest, newest_spark)))


def providers(
    wheel: Path, provider: Path, sdist: Path, pythons: tuple[str, str]
) -> Iterator[Trial]:
    """The provider beside Airflow under our pins, and under the file that Airflow publishes."""
    ways = (
        ("provider's wheel, constraints-airflow.txt", provider, pinned(AIRFLOW_PINS.name)),
        (f"provider's wheel, Airflow {AIRFLOW}'s constraints", provider, official),
        ("provider's wheel, oldest Airflow", provider, oldest_airflow(wheel)),
        ("provider's sdist, constraints-airflow.txt", sdist, pinned(AIRFLOW_PINS.name)),
    )
    for name, file, pins in ways:
        for python in pythons:
            yield Trial(
                name=name, python=python, wanted=(str(wheel), str(file)), pins=pins,
                use=import_provider,
            )  # fmt: skip


def follow_quickstart(environment: Path, folder: Path) -> None:
    """All that the page does before Airflow. Raises BlockFailed."""
    _follow(environment, folder, (INSTALLS, LANCEDBS))


def follow_quickstart_without_spark(environment: Path, folder: Path) -> None:
    """The same where neither Spark nor Java is."""
    _follow(environment, folder, (INSTALLS, LANCEDBS, SPARKS))


def _follow(environment: Path, folder: Path, skip: tuple[str, ...]) -> None:
    home = folder / "home"
    home.mkdir()
    reader = Reader(home, folder=home, environment=environment)
    if SPARKS not in skip:
        reader.variables["JAVA_HOME"] = find_java()
    reader.paste("python -c \"import memwal as m; assert 'site-packages' in m.__file__\"")
    check_shown("\n".join(reader.follow(skip=skip)))
    reader.paste("memwal explain MW-W01")


def import_provider(environment: Path, folder: Path) -> None:
    """Import it as Airflow does, with a home of its own. Raises CalledProcessError."""
    variables = {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder),
        "AIRFLOW_HOME": str(folder / "airflow"),
    }
    run([environment / "bin" / "python", "-c", PROVIDER], env=variables, cwd=folder)
    uv("pip", "check", "--python", str(environment))


def unpinned(python: Path, folder: Path) -> None:
    """The newest of everything."""


def lowest(python: Path, folder: Path) -> Path:
    """The oldest versions of what we ask for that this Python can install."""
    pins = folder / "lowest.txt"
    uv(
        "pip", "compile", "--python", str(python), "--resolution", "lowest-direct", *WHEELS_ONLY,
        "--extra", "spark", "--extra", "metrics", str(ROOT / "pyproject.toml"), "-o", str(pins),
    )  # fmt: skip
    return pins


def oldest_airflow(wheel: Path) -> Callable[[Path, Path], Path]:
    """The oldest that the provider allows, which pins its own parts; our pins for the rest."""

    def pin(python: Path, folder: Path) -> Path:
        rest, ours, pins = (folder / name for name in ("rest.txt", "ours.txt", "airflow.txt"))
        text = AIRFLOW_PINS.read_text()
        rest.write_text(re.sub(r"^apache-airflow.*\n", "", text, flags=re.MULTILINE))
        ours.write_text(f"lance-memwal @ {wheel.as_uri()}\n")
        uv(
            "pip", "compile", "--python", str(python), "--resolution", "lowest-direct",
            "--constraint", str(rest), str(ROOT / "airflow_plugins" / "pyproject.toml"),
            str(ours), "-o", str(pins),
        )  # fmt: skip
        return pins

    return pin


def pinned(name: str) -> Callable[[Path, Path], Path]:
    """By a file of ours."""
    return lambda python, folder: ROOT / name


def official(python: Path, folder: Path) -> Path:
    """By the constraints that Airflow publishes. Raises CannotBeHad."""
    version = ".".join(ask_version(python).split(".")[:2])
    pins = folder / "airflow.txt"
    address = f"{OFFICIAL}/constraints-{version}.txt"
    try:
        run(["curl", "-fsSL", "--max-time", "30", "-o", str(pins), address])
    except subprocess.CalledProcessError as error:
        raise CannotBeHad(f"        {error.stderr.strip()}") from None
    with pins.open("a") as file:
        file.write(f"\napache-airflow=={AIRFLOW}\n")
    return pins


@cache
def find_bounds() -> tuple[str, str]:
    """The oldest Python that we allow, and the newest that is here or that uv can fetch."""
    text = (ROOT / "pyproject.toml").read_text()
    oldest = re.findall(r'^requires-python = ">=([\d.]+)"$', text, re.MULTILINE)[0]
    return oldest, newest_of((99, 0))


@cache
def newest_of(most: tuple[int, int]) -> str:
    """The newest released Python up to `most` that can be had. Says which newer ones can't."""
    listed = json.loads(uv("python", "list", "--only-downloads", "--output-format", "json"))
    versions = {
        (each["version_parts"]["major"], each["version_parts"]["minor"])
        for each in listed
        if re.fullmatch(r"[\d.]+", each["version"]) and each["implementation"] == "cpython"
    }
    for major, minor in sorted(versions, reverse=True):
        if (major, minor) <= most and can_be_had(f"{major}.{minor}"):
            return f"{major}.{minor}"
    raise CannotBeHad("no Python at all")


@cache
def can_be_had(python: str) -> bool:
    """Whether it is here or can be fetched. Says once if it isn't."""
    try:
        find_python(python)
    except CannotBeHad as error:
        print(f"note: {error}", flush=True)
        return False
    return True


@cache
def find_python(version: str) -> Path:
    """Where Python `version` is: on PATH, pyenv's, or fetched by uv. Raises CannotBeHad."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (f"python{version}", *map(str, pyenv.glob(f"{version}.*/bin/python"))):
        try:
            path = run([found, "-c", "import sys; print(sys.executable)"]).strip()
            return Path(path)
        except (OSError, subprocess.CalledProcessError):
            continue
    try:
        uv("python", "install", version)
        return Path(uv("python", "find", "--managed-python", version).strip())
    except subprocess.CalledProcessError as error:
        why = error.stderr.strip().splitlines()[-1:] or ["uv fetched nothing"]
        raise CannotBeHad(f"Python {version} can't be had here: {why[0].strip()}") from None


def ask_version(python: Path) -> str:
    """Such as 3.13.0."""
    return run([python, "-c", "import platform; print(platform.python_version())"]).strip()


@cache
def find_java() -> str:
    """The home of a Java that Spark can run on."""
    return run(["bash", ROOT / "scripts" / "java.sh"]).strip()


def list_versions(environment: Path) -> str:
    """Of the packages that decide most."""
    listed = json.loads(uv("pip", "list", "--format", "json", "--python", str(environment)))
    versions = {each["name"]: each["version"] for each in listed}
    return " ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)


def uv(*words: str) -> str:
    """Outside of every project; what it prints. Raises CalledProcessError."""
    from uv import find_uv_bin

    return run([find_uv_bin(), "--no-progress", *words], cwd=Path("/"))


def run(words: list[str | Path], **options: object) -> str:
    """What it prints. Raises CalledProcessError or TimeoutExpired."""
    done = subprocess.run(
        words, check=True, capture_output=True, text=True, timeout=SECONDS_MAX, **options
    )  # type: ignore[call-overload]
    return str(done.stdout)
