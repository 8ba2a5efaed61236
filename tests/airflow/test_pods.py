"""The example for the Kubernetes executor, as far as it goes without a cluster: the pods' specs."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from kubernetes.client import ApiClient
from kubernetes.client import models as k8s

from tests.airflow.airflow_server import EXAMPLES, InProcessAirflow

pytestmark = pytest.mark.integration

JOBS = ("merge", "index_catchup", "snapshot", "garbage")


@pytest.fixture
def example(airflow_home: InProcessAirflow) -> Any:
    bag = DagBag(dag_folder=EXAMPLES / "orders_pods.py", bundle_path=EXAMPLES)
    assert bag.import_errors == {}
    return bag.dags["orders_pods"]


def render(task: Any) -> dict[str, Any]:
    """The pod that the executor would ask the cluster for."""
    worker = k8s.V1Container(name="base", image="airflow", env=[k8s.V1EnvVar(name="A", value="b")])
    pod = PodGenerator.construct_pod(
        dag_id=task.dag_id,
        task_id=task.task_id,
        pod_id="pod",
        try_number=1,
        kube_image="airflow",
        date=None,
        args=["python", "-m", "airflow.sdk.execution_time.execute_workload"],
        pod_override_object=PodGenerator.from_obj(task.executor_config),
        base_worker_pod=k8s.V1Pod(spec=k8s.V1PodSpec(containers=[worker])),
        namespace="lake",
        scheduler_job_id="1",
        run_id="run",
    )
    found: dict[str, Any] = ApiClient().sanitize_for_serialization(pod)
    return found


@pytest.mark.parametrize("job", JOBS)
def test_each_job_waits_in_a_pod_that_has_what_it_needs(example: Any, job: str) -> None:
    task = example.get_task(f"memwal_orders.{job}")
    assert task.deferrable is False
    spec = render(task)["spec"]
    (container,) = spec["containers"]
    assert (container["name"], container["image"]) == (
        "base",
        "registry.example.com/airflow-memwal:1",
    )
    variables = {pair["name"]: pair["value"] for pair in container["env"] if "value" in pair}
    assert variables["A"] == "b"
    config = variables["AIRFLOW__MEMWAL__CONFIG_FILE"]
    (mount,) = container["volumeMounts"]
    assert config == f"{mount['mountPath']}/memwal.toml"
    assert spec["volumes"] == [{"name": mount["name"], "configMap": {"name": "memwal"}}]
    assert container["resources"]["limits"] == {"memory": "4Gi"}
    assert container["args"][0] == "python"
    # Longer than a job's own grace.
    assert spec["terminationGracePeriodSeconds"] == 60


def test_the_announcements_need_no_such_pod(example: Any) -> None:
    others = set(example.task_ids) - {f"memwal_orders.{job}" for job in JOBS}
    assert others
    assert all(not example.get_task(name).executor_config for name in others)
