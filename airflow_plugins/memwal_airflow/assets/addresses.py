"""The addresses of tables, as Airflow assets and OpenLineage write them: without credentials."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from memwal.config import Config, is_address, mask_address


def find_address(table: str, config: Config) -> str | None:
    """Return the table's address as an asset's URI, without credentials.

    None for a name that is not in the configuration, and for a table of a namespace, since the
    namespace may move it one day.
    """
    section = config.tables.get(table)
    address = section.uri if section else table
    if section is None and not is_address(address):
        return None
    if address.partition(":")[0] in config.namespaces and "/" not in address:
        return None
    return tidy_address(address)


def tidy_address(address: str) -> str:
    """Return an address as an asset's URI: without credentials, and with a scheme."""
    if "://" not in address:
        return Path(address).absolute().as_uri()
    return mask_address(address).replace("***@", "", 1).removesuffix("?***").rstrip("/")


def split_address(address: str) -> tuple[str, str]:
    """Return OpenLineage's namespace and name for an address."""
    parts = urlsplit(tidy_address(address))
    if parts.scheme == "file":
        return "file", unquote(parts.path)
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/") or "/"
