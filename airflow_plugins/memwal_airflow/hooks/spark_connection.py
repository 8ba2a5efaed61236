"""From a Spark connection to a spark-submit command line.

Reads the fields of Airflow's own Spark connection type, whose provider need not be installed (it
would bring a second pyspark). Host and port form the master; `extra` may hold `deploy-mode`,
`spark-binary`, `queue`, `namespace`, `keytab`, `principal`, and `conf`, an object of properties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow.sdk import Connection

from memwal.errors import Usage

_BINARIES = ("spark-submit", "spark2-submit", "spark3-submit")


@dataclass(frozen=True, kw_only=True)
class SparkTarget:
    """Where Spark runs a job."""

    master: str
    deploy_mode: str | None = None
    binary: str = "spark-submit"
    options: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_cluster(self) -> bool:
        """Whether the driver runs in the cluster instead of here."""
        return self.deploy_mode == "cluster"

    def submit(
        self, binary: str, application: Sequence[str], *, name: str, properties: Path
    ) -> list[str]:
        """Return the command line that submits `application`, a script and its arguments.

        The connection's properties are written to the file `properties`: they may hold credentials,
        and everybody can see a command line.
        """
        argv = [binary, "--master", self.master, "--name", name]
        if self.deploy_mode:
            argv += ["--deploy-mode", self.deploy_mode]
        if self.properties:
            properties.touch(mode=0o600)
            properties.write_text("".join(map(_line, self.properties.items())))
            # Without the second flag the file would replace spark-defaults.conf.
            argv += ["--properties-file", str(properties), "--load-spark-defaults"]
        return [*argv, *self.options, *application]


def _line(item: tuple[str, str]) -> str:
    """A line of a Java properties file."""
    key, value = (text.replace("\\", "\\\\").replace("\n", "\\n") for text in item)
    for special in ":= #!":
        key = key.replace(special, f"\\{special}")
    return f"{key}={value}\n"


def read_spark_target(connection: Connection) -> SparkTarget:
    """Read the connection. Raises Usage for a binary or deploy mode that is not supported."""
    extra: dict[str, Any] = connection.extra_dejson
    host = connection.host or "yarn"
    master = f"{host}:{connection.port}" if connection.port else host
    # A connection given as a URI loses the scheme of spark://host. Airflow's provider restores
    # it as well.
    if connection.port and "://" not in master:
        master = f"spark://{master}"
    binary = extra.get("spark-binary") or "spark-submit"
    if binary not in _BINARIES:
        raise Usage(f"connection {connection.conn_id}: spark-binary must be one of {_BINARIES}")
    mode = extra.get("deploy-mode") or None
    if mode not in (None, "client", "cluster"):
        raise Usage(f"connection {connection.conn_id}: deploy-mode must be client or cluster")
    options: list[str] = []
    for key, flag in (("queue", "--queue"), ("keytab", "--keytab"), ("principal", "--principal")):
        if extra.get(key):
            options += [flag, str(extra[key])]
    properties = {str(k): str(v) for k, v in (extra.get("conf") or {}).items()}
    if extra.get("namespace"):
        properties.setdefault("spark.kubernetes.namespace", str(extra["namespace"]))
    return SparkTarget(
        master=master,
        deploy_mode=mode,
        binary=binary,
        options=tuple(options),
        properties=properties,
    )
