"""From a Spark connection to the words of `memwal submit`.

Reads the fields of Airflow's own Spark connection type, whose provider need not be installed (it
would bring a second pyspark). Host and port form the master; `extra` may hold `deploy-mode`,
`queue`, `namespace`, `keytab`, `principal`, and `conf`, an object of properties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwal.errors import Usage

if TYPE_CHECKING:
    from airflow.sdk import Connection

_PROPERTIES = {
    "queue": "spark.yarn.queue",
    "namespace": "spark.kubernetes.namespace",
    "keytab": "spark.kerberos.keytab",
    "principal": "spark.kerberos.principal",
}


@dataclass(frozen=True, kw_only=True)
class SparkTarget:
    """Where Spark runs a job. Its driver runs here, beside the task."""

    master: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def list_words(self, job: str, file: Path) -> Sequence[str]:
        """Return what follows `memwal`, up to the job's own words.

        The connection's properties are written to `file`: they may hold credentials, and everybody
        can see a command line.
        """
        words = ["submit", "--master", self.master]
        if self.properties:
            file.touch(mode=0o600)
            file.write_text("".join(map(_line, self.properties.items())))
            words += ["--properties-file", str(file)]
        return [*words, job, "--"]


def _line(item: tuple[str, str]) -> str:
    """A line of a Java properties file."""
    key, value = (text.replace("\\", "\\\\").replace("\n", "\\n") for text in item)
    for special in ":= #!":
        key = key.replace(special, f"\\{special}")
    return f"{key}={value}\n"


def read_spark_target(connection: Connection) -> SparkTarget:
    """Read the connection. Raises Usage for a deploy mode that is not supported."""
    extra: dict[str, Any] = connection.extra_dejson
    if extra.get("deploy-mode") not in (None, "", "client"):
        raise Usage(
            f"connection {connection.conn_id}: with another deploy mode than client neither the "
            "driver's report nor its end could be seen from here; use client mode (executors run "
            "in the cluster all the same)"
        )
    host = connection.host or "yarn"
    master = f"{host}:{connection.port}" if connection.port else host
    # A connection given as a URI loses the scheme of spark://host. Airflow's provider restores
    # it as well.
    if connection.port and "://" not in master:
        master = f"spark://{master}"
    given = {name: extra[key] for key, name in _PROPERTIES.items() if extra.get(key)}
    properties = {str(k): str(v) for k, v in {**given, **(extra.get("conf") or {})}.items()}
    return SparkTarget(master=master, properties=properties)
