"""Every option of a job's command is a field of its operator, by the same name, and a template."""

from __future__ import annotations

import inspect
import json
import subprocess
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from airflow.sdk import DAG
from airflow.utils.types import DagRunType
from jinja2.sandbox import SandboxedEnvironment
from local_airflow.home import JOBS_BIN
from memwal_airflow import forms
from memwal_airflow.operators.base import MemWalJobOperator
from memwal_airflow.operators.jobs import MemWalRescueOperator
from memwal_airflow.task_groups import OPERATORS, memwal_task_group

from memwal.config import Config
from memwal.errors import Usage
from memwal.jobs.garbage.request import GarbageRequest
from memwal.options import Option
from tests.airflow.airflow_server import InProcessAirflow

pytestmark = pytest.mark.integration

ASK = """
import json, typer
from memwal.cli.app import app
commands = {
    name: getattr(command, "commands", {}).get(getattr(command, "default_command", ""), command)
    for name, command in typer.main.get_command(app).commands.items()
}
print(json.dumps({
    name: {p.opts[0]: p.is_flag for p in command.params if p.opts[0][:2] == "--" and not p.hidden}
    for name, command in commands.items()
}))
"""
# No fields, and why.
ELSEWHERE = {
    "--help": "nothing to run",
    "--all": "an operator names its tables",
    "--json": "the report is read from a file",
    "--report": "that file",
    "--config": "[memwal] config_file",
    "--audit": "the configuration: whoever starts a run must not move its trail",
    "--storage-option": "the connection",
    "--master": "the Spark connection",
    "--log-format": "Airflow's log has lines of text",
    "--debug": "the workers' environment",
}
# Fields that are lists or maps, or have to be called otherwise: `default`, `map` are maps, too.
NAMES = {
    "--shard": "shards",
    "--index": "indexes",
    "--dest-storage-option": "dest_storage_options",
}
INGEST_NAMES = {"--shard": "shard", "--id": "ingest_id"}
GIVEN: dict[str, tuple[Any, str]] = {
    "shards": (["{{ '0f' }}"], "0f"),
    "shard": ("{{ '0f' }}", "0f"),
    "indexes": (["{{ 'by' }}_key"], "by_key"),
    "jobs": ("{{ ['merge'] }}", "merge"),
    "convert": ("{{ ['round'] }}", "round"),
    "compaction": ("{{ 'au' ~ 'to' }}", "auto"),
    "keep": ("{{ 1 }}d", "1d"),
    **{name: ({"a": "{{ 1 }}=b"}, "a=1=b") for name in ("map", "default", "dest_storage_options")},
}


@pytest.fixture(scope="module")
def commands() -> Any:
    done = subprocess.run([JOBS_BIN / "python", "-c", ASK], capture_output=True, check=True)
    return json.loads(done.stdout)


def build(job: str, **fields: Any) -> MemWalJobOperator:
    fields |= {"table": "t", "sources": "s"} if job == "ingest" else {"tables": "t"}
    with DAG("own", schedule=None):
        return OPERATORS[job](task_id="job", **fields)


@pytest.mark.parametrize("job", OPERATORS)
def test_every_option_has_a_field_that_is_a_template(job: str, commands: Any) -> None:
    names = INGEST_NAMES if job == "ingest" else NAMES
    signatures = [inspect.signature(kind.__init__) for kind in OPERATORS[job].__mro__]  # type: ignore[misc]
    fields = {name for signature in signatures for name in signature.parameters}
    given, words = {}, []
    for option, is_switch in commands[job].items():
        if option in ELSEWHERE:
            continue
        name = names.get(option, option.removeprefix("--").replace("-", "_"))
        assert name in fields, f"memwal {job} {option}: {OPERATORS[job].__name__} has no field"
        template, value = GIVEN.get(name, ("{{ 1 }}x", "1x"))
        given[name] = "{{ 1 < 2 }}" if is_switch else template
        words.append(option if is_switch else f"{option}={value}")
    task = build(job, **given)
    task.render_template_fields({}, SandboxedEnvironment())  # type: ignore[arg-type, typeddict-item]
    assert sorted(task.list_options()) == sorted(words)


@pytest.mark.parametrize("job", OPERATORS)
def test_what_the_command_does_not_take_is_left_out(job: str, commands: Any) -> None:
    """A group gives its fields to all of its jobs."""
    common = {"dry_run": True, "engine": "local", "memory_max": "1GiB", "no_lease": True}
    found = {word.partition("=")[0] for word in build(job, **common).list_options()}
    assert found <= set(commands[job])
    assert ("--dry-run" in found) == (job != "verify")


@pytest.mark.parametrize("text", ["ture", "on", "2"])
def test_a_switch_is_true_or_false(text: str) -> None:
    with pytest.raises(Usage, match="expected true or false"):
        build("garbage", dry_run=text, execute=True).list_options()


def test_fields_of_no_value_give_no_option() -> None:
    for job in OPERATORS:
        fields = {"execute": "{{ none }}"} if job in ("garbage", "maintain") else {}
        task = build(job, dry_run="", engine="{{ none }}", **fields)
        task.render_template_fields({}, SandboxedEnvironment())  # type: ignore[arg-type, typeddict-item]
        assert task.list_options() == [], job


@pytest.mark.parametrize("kind", [k for k in DagRunType if k is not DagRunType.MANUAL])
def test_rescue_claims_nothing_unless_somebody_asks_for_it(kind: DagRunType) -> None:
    run: Any = {"dag_run": SimpleNamespace(run_type=kind)}
    task = MemWalRescueOperator(task_id="job", tables="t", yes=True)
    with pytest.raises(Usage, match="by hand"):
        task.check_run(run)
    MemWalRescueOperator(task_id="job", tables="t", dry_run=True).check_run(run)
    task.check_run({"dag_run": SimpleNamespace(run_type=DagRunType.MANUAL)})  # type: ignore[typeddict-item]


def test_a_group_has_a_place_for_every_job(airflow_home: InProcessAirflow) -> None:
    fields = {"ingest": {"sources": "/landing"}, "garbage": {"execute": True, "retention": "9d"}}
    with DAG("own", schedule=None) as dag:
        memwal_task_group("orders", jobs=list(OPERATORS), fields=fields, dry_run=True)
    tasks: Any = {task.task_id.removeprefix("memwal_orders."): task for task in dag.tasks}
    for job, kind in OPERATORS.items():
        task = tasks[job.replace("-", "_")]
        assert type(task) is kind
        assert (task.tables, task.dry_run_only, task.doc_md) == ("orders", True, task.doc_md)
        assert task.doc_md and ":param" not in task.doc_md
    assert tasks["garbage"].list_options() == ["--retention=9d", "--execute", "--dry-run"]
    airflow_home.register(dag)
    with pytest.raises(ValueError, match="unknown job 'gabage'"):
        memwal_task_group("orders", fields={"gabage": {}})
    with pytest.raises(ValueError, match="fields of 'garbage', which is not among the jobs: merge"):
        memwal_task_group("orders", jobs=["merge"], fields={"garbage": {"execute": True}})
    with pytest.raises(TypeError, match="one table"):
        memwal_task_group(["orders", "users"])  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Longer(GarbageRequest):
    """A garbage collection that can be asked for one thing more."""

    pause_seconds: Annotated[
        float, Option(meaning="How long to pause between deletes.", metavar="5s", form="Pause")
    ] = 1.5


def test_an_option_that_is_declared_is_a_field_and_in_the_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class LongerOperator(MemWalJobOperator):
        """Collects garbage at leisure."""

        job = "garbage"
        request = Longer

    with DAG("own", schedule=None, default_args={"grace": "2h"}):
        task = LongerOperator(task_id="job", tables="t", pause="{{ 2 }}s", execute=True)
    assert {"pause", "garbage_execute", "grace"} <= set(task.template_fields)
    assert ":param pause: How long to pause between deletes (templated)" in (task.__doc__ or "")
    task.render_template_fields({}, SandboxedEnvironment())  # type: ignore[arg-type, typeddict-item]
    assert task.list_options() == ["--grace=2h", "--execute", "--pause=2s"]
    with DAG("mapped", schedule=None):
        LongerOperator.partial(task_id="job", pause="1s").expand(tables=["a", "b"])
        with pytest.raises(TypeError, match="paws"):
            LongerOperator.partial(task_id="other", paws="1s").expand(tables=["a"])
    monkeypatch.setitem(forms.OPERATORS, "garbage", LongerOperator)
    found = forms.build_run_params(Config(), "garbage")["pause"]
    assert found.schema["title"] == "Pause"
    assert forms.build_run_fields("garbage")["pause"] == "{{ params.pause }}"


def test_a_form_leaves_to_the_configuration_what_nobody_chose() -> None:
    params = forms.build_run_params(Config(), "garbage")
    assert (params["wal"].resolve(), params["execute"].resolve()) == (None, False)


def test_odd_values_make_no_option_and_no_text_gives_a_secret_away() -> None:
    for value in ("", [], None, "None"):
        assert build("ingest", shard=value, ingest_id=value).list_options() == []
    assert build("ingest", shard=["ab"]).list_options() == ["--shard=ab"]
    assert build("index-catchup", method="no").list_options() == ["--method=no"]
    with pytest.raises(Usage) as caught:
        build("merge", shards="s3://key:SECRET@lake/x").list_options()
    assert "SECRET" not in str(caught.value)
    with pytest.raises(Usage, match="dash"):
        build("ingest", ingest_id="--again").list_options()
