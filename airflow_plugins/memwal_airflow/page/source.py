"""The page's tables: those of the configuration, and the command that queries them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from memwal.config import Config, mask_address, resolve_table
from memwal.errors import Usage
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.redaction import Redactor, find_secrets
from memwal_airflow.settings import read_config


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What the configuration lacks so far, without being wrong: `lines` to add to `file`."""

    says: str
    file: str
    lines: str


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which tables there are and how to query them, as of one moment.

    `tables` maps names to addresses without credentials. `problem` says why the tables can't be
    known, `missing` why there are none.
    """

    tables: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    missing: Missing | None = None
    redactor: Redactor = field(default_factory=Redactor)
    jobs: JobsEnvironment | None = field(default=None, repr=False)


def read_order(environment: Callable[[], JobsEnvironment]) -> Order:
    """Read the connection and the configuration file; errors end up in `problem`."""
    try:
        jobs = environment()
    except Exception as error:
        # Secrets backends may raise anything.
        text = f"the connection can't be read: {type(error).__name__}: {error}"
        return Order(problem=Redactor().clean(text))
    redactor = Redactor(_secrets(Config(), jobs))
    try:
        config = read_config(jobs.config_file)
    except Usage as error:
        return Order(problem=redactor.clean(str(error)), redactor=redactor)
    except Exception as error:
        return Order(problem=f"the configuration can't be read: {type(error).__name__}")
    return Order(
        tables={name: mask_address(section.uri) for name, section in config.tables.items()},
        missing=None if config.tables else _describe_missing(jobs.config_file),
        redactor=Redactor(_secrets(config, jobs)),
        jobs=jobs,
    )


def _describe_missing(config_file: str | None) -> Missing:
    if config_file is None:
        return Missing(
            says="Airflow is not told yet in which file the tables are named.",
            file="airflow.cfg",
            lines="[memwal]\nconfig_file = /etc/memwal.toml",
        )
    return Missing(
        says="No table is named yet.",
        file=config_file,
        lines='[tables.orders]\nuri = "s3://lake/orders"',
    )


def _secrets(config: Config, jobs: JobsEnvironment) -> set[str]:
    found = {*jobs.secrets, *find_secrets(jobs.storage_options)}
    for name in config.tables:
        try:
            found |= find_secrets(resolve_table(name, config, {}, os.environ).storage_options)
        except Usage:
            # The variable is not set here, so its value can't be in any text either.
            continue
    for name, namespace in config.namespaces.items():
        try:
            found |= find_secrets(namespace.expand(name, os.environ))
        except Usage:
            continue
    return found


def read_airflow_order() -> Order:
    """Read the order from Airflow's configuration and the memwal connection."""
    from memwal_airflow.hooks.memwal import MemWalHook
    from memwal_airflow.settings import read_settings

    return read_order(lambda: MemWalHook(read_settings().conn_id).environment())
