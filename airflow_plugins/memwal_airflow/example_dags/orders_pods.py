"""The upkeep of the table `orders` of memwal.toml, each job in a pod of its own.

For the Kubernetes executor (apache-airflow-providers-cncf-kubernetes). The job is a process beside
its task, so the pod is a worker's pod, and its image holds what a worker needs: Airflow with this
provider, and an environment with memwal at `[memwal] command` (with Java, if jobs run on Spark).
`memwal.toml` comes from the ConfigMap `memwal`, and has to be there for the DAG processor, the
triggerer and the API server as well. `[memwal] run_directory` may be the pod's own.

Jobs wait in their pods: a pod ends with its task, so a deferred job would end with it.
"""

from airflow.sdk import dag
from kubernetes.client import models as k8s
from memwal_airflow.task_groups import memwal_task_group

IMAGE = "registry.example.com/airflow-memwal:1"
CONFIG = "/etc/memwal"


def build_pod(*, cpu: str, memory: str) -> dict[str, k8s.V1Pod]:
    """What the pod of a job has beyond the template of all workers' pods."""
    size = {"cpu": cpu, "memory": memory}
    job = k8s.V1Container(
        # The one that runs the task.
        name="base",
        image=IMAGE,
        env=[k8s.V1EnvVar(name="AIRFLOW__MEMWAL__CONFIG_FILE", value=f"{CONFIG}/memwal.toml")],
        resources=k8s.V1ResourceRequirements(requests=size, limits={"memory": memory}),
        volume_mounts=[k8s.V1VolumeMount(name="memwal", mount_path=CONFIG, read_only=True)],
    )
    config = k8s.V1Volume(name="memwal", config_map=k8s.V1ConfigMapVolumeSource(name="memwal"))
    # A job that is told to end needs half a minute at most to give up its lease.
    spec = k8s.V1PodSpec(containers=[job], volumes=[config], termination_grace_period_seconds=60)
    return {"pod_override": k8s.V1Pod(spec=spec)}


@dag(schedule="*/10 * * * *", catchup=False, max_active_runs=1, tags=["memwal", "example"])
def orders_pods() -> None:
    """Merge, index catch-up, snapshot and garbage, one after the other."""
    memwal_task_group("orders", executor_config=build_pod(cpu="1", memory="4Gi"), deferrable=False)


orders_pods()
