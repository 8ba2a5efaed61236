"""An option is declared once: here one is added, and found wherever people can give it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from memwal.cli.requests import make_parameters, read_request
from memwal.config.requests import check_request
from memwal.errors import Usage
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.jobs.maintain.request import BackfillRequest, MaintainRequest
from memwal.jobs.merge.request import MergeRequest
from memwal.options import Kind, Option, convert_request, list_options, list_settings
from memwal.run.keywords import name_keywords, takes
from scripts.reference import _describe_options


@dataclass(frozen=True, kw_only=True)
class Longer(MergeRequest):
    """A merge that can be asked for more."""

    pause_seconds: Annotated[
        float, Option(meaning="How long to pause between commits.", metavar="5s", form="Pause")
    ] = 1.5
    seconds_max: Annotated[float | None, Option(meaning="Begin no commit after this long.")] = None


def make_command(request: type) -> tuple[typer.Typer, list[Any]]:
    """A command that takes only the request's options, and the requests that it was given."""
    found: list[Any] = []

    def work(**values: Any) -> None:
        found.append(read_request(request, values))

    parameters = make_parameters(request)
    work.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=hint)
            for name, (hint, value) in parameters.items()
        ]
    )
    work.__annotations__ = {name: hint for name, (hint, _) in parameters.items()}
    app = typer.Typer()
    app.command()(work)
    return app, found


def run(request: type, *words: str) -> Any:
    app, found = make_command(request)
    done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert found, done.output
    return found[0]


def test_an_option_that_is_added_is_on_the_command_line_and_in_the_reference() -> None:
    assert run(Longer).pause_seconds == 1.5
    assert run(Longer, "--pause", "2m").pause_seconds == 120.0
    assert run(Longer, "--seconds-max", "10m").seconds_max == 600.0
    with pytest.raises(Usage, match="--pause '5': expected a number and a unit"):
        run(Longer, "--pause", "5")
    command = typer.main.get_command(make_command(Longer)[0])
    lines = list(_describe_options(command, {"pause_seconds"}))
    assert "| `--pause 5s` | `1500ms` | How long to pause between commits. |" in lines


def test_an_option_that_is_added_is_a_keyword_in_python() -> None:
    class Table:
        @takes(Longer)
        def merge(self, request: Longer) -> Longer:
            return request

    signature = inspect.signature(Table.merge)
    assert signature.parameters["pause_seconds"].default == 1.5
    assert "allow_holes" in signature.parameters
    assert Table().merge(pause_seconds=3.0, shards=["ABC"]).shards == ("abc",)
    with pytest.raises(TypeError, match="pause"):
        Table().merge(pause=3.0)  # type: ignore[call-arg]
    with pytest.raises(Usage, match="until_generation 0: expected 1 or more"):
        Table().merge(until_generation=0)


@pytest.mark.parametrize(
    ("request_kind", "name", "value", "said"),
    [
        (MergeRequest, "until_generation", 0, "--until-generation 0: expected 1 or more"),
        (MergeRequest, "shards", ["x"], "'x' is not a shard id"),
        (MergeRequest, "bytes_per_commit_max", 0, "--bytes-per-commit-max 0: expected 1 or more"),
        (BackfillRequest, "concurrency", 257, "--concurrency 257: expected 256 or less"),
        (BackfillRequest, "jobs", ["snapshot"], "--jobs 'snapshot': expected merge, index-catchup"),
        (MaintainRequest, "compaction", "yes", "--compaction 'yes': expected never, auto, always"),
    ],
)
def test_a_value_that_no_job_takes_is_refused(
    request_kind: type, name: str, value: Any, said: str
) -> None:
    with pytest.raises(Usage, match=said):
        check_request(request_kind(**{name: value}), lambda declared: declared.flag)


def test_every_kind_of_option_is_read_as_it_is_declared() -> None:
    kinds = {declared.name: declared.kind for declared in list_options(GarbageRequest)}
    assert kinds["grace_seconds"] is Kind.DURATION
    assert kinds["wal"] is Kind.EITHER
    assert kinds["execute"] is Kind.SWITCH
    assert run(GarbageRequest, "--no-wal").wal is False
    assert run(GarbageRequest).wal is None
    assert run(GarbageRequest).grace_seconds is None
    assert run(BackfillRequest, "--jobs", "index-catchup,merge").jobs == ("merge", "index-catchup")
    assert run(MergeRequest, "--bytes-per-commit-max", "1MiB").bytes_per_commit_max == 2**20


def test_an_option_overrides_the_key_that_it_names_and_only_if_it_is_given() -> None:
    assert list_settings(MergeRequest()) == {}
    assert list_settings(MergeRequest(bytes_per_commit_max=7)) == {"bytes_per_commit_max": 7}


def test_an_option_in_a_message_is_a_keyword_in_python() -> None:
    text = "--grace, --convert=utc, --no-wal; run `memwal merge --shard X` without --no-lease"
    assert name_keywords(text, GarbageRequest) == (
        "grace_seconds, convert=utc, wal=False; run `memwal merge --shard X` without lease=False"
    )


def test_a_request_says_the_same_as_another_kind() -> None:
    asked = MaintainRequest(execute=True, wal=False, retention_seconds=9.0, compaction="auto")
    found = convert_request(asked, GarbageRequest, full=True)
    assert found == GarbageRequest(execute=True, wal=False, retention_seconds=9.0, full=True)


@pytest.mark.parametrize(
    ("asked", "settings"),
    [
        (MergeRequest(bytes_per_commit_max="5MB"), {"bytes_per_commit_max": 5_000_000}),  # type: ignore[arg-type]
        (MergeRequest(generations_per_commit_max=1e2), {"generations_per_commit_max": 100}),  # type: ignore[arg-type]
    ],
)
def test_what_a_key_takes_its_option_takes_in_python(asked: Any, settings: dict[str, Any]) -> None:
    assert list_settings(check_request(asked, lambda declared: declared.name)) == settings


def test_none_is_a_value_only_where_the_type_says_so() -> None:
    assert check_request(MergeRequest(until_generation=None), lambda d: d.name) == MergeRequest()
    with pytest.raises(Usage, match="method None: expected auto, append"):
        check_request(CatchupRequest(method=None), lambda d: d.name)  # type: ignore[arg-type]
