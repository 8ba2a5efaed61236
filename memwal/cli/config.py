"""`memwal config`: every key of memwal.toml, and those that are set."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memwal.cli.flags import ReadFlags, command
from memwal.cli.output import Document
from memwal.config import (
    SECTIONS,
    Config,
    Settings,
    load_config,
    mask_address,
    name_variable,
    read_environment_settings,
)
from memwal.report import Section

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = ("rows", "bytes", "seconds", "percent", "generations", "shards", "tasks")
_SECRET = "storage_options"

Explain = Annotated[
    bool, typer.Option("--explain", help="Every key: type, default, unit, variable, meaning.")
]


class ConfigDocument(Section):
    """`memwal config`; `value` and `origin` where a key is set, the rest with `--explain`."""

    file: str | None
    keys: list[dict[str, Any]]


@command()
def config(explain: Explain = False, *, flags: ReadFlags) -> Document:
    """Show which keys of memwal.toml are set, and by what.

    Storage options are left out: some are secrets.
    """
    found = load_config(flags.config)
    keys = list(list_keys() if explain else _list_set(found))
    file = None if found.file is None else str(found.file)
    return Document(content=ConfigDocument(file=file, keys=keys).to_json(), show=_show)


def _show(content: Mapping[str, Any], console: Console) -> None:
    console.print(content["file"] or "no configuration file")
    section = None
    for key in content["keys"]:
        if section != (section := key.get("section")):
            console.print()
            console.print(f"[{section}]")
        value = key.get("value", key.get("default"))
        shown = "" if value is None else f" = {json.dumps(value)}"
        facts = [key.get(name) for name in ("unit", "type", "variable", "origin")]
        console.print(f"{key['key']}{shown}  ({'; '.join(filter(None, facts))})")
        if "meaning" in key:
            console.print(f"    {key['meaning']}")


def _list_set(found: Config) -> Iterator[dict[str, Any]]:
    """Yield the keys that are set: the environment's, which take precedence, then the file's."""
    for name, value in read_environment_settings(os.environ).items():
        yield {"key": name, "value": value, "origin": name_variable(name)}
    stored = found.model_dump(
        mode="json", exclude_unset=True, exclude_none=True, exclude={"namespaces"}
    )
    several = {
        f"{kind}.{name}": section
        for kind in ("patterns", "tables")
        for name, section in stored.pop(kind, {}).items()
    }
    for section, values in {**stored, **several}.items():
        for name, value in values.items():
            if name != _SECRET:
                shown = mask_address(value) if name == "uri" else value
                yield {"key": f"{section}.{name}", "value": shown, "origin": "file"}


def list_keys() -> Iterator[dict[str, Any]]:
    """Yield every key, as `--explain` and the reference page show it."""
    standards = _find_defaults()
    for section, kind in SECTIONS.items():
        schema = kind.model_json_schema()
        for name, said in schema["properties"].items():
            if section in ("patterns.NAME", "tables.NAME") and name in Settings.model_fields:
                continue
            options = [o for o in said.get("anyOf", (said,)) if o.get("type") != "null"]
            is_setting = kind is Settings
            default = standards.get(name) if is_setting else said.get("default")
            yield {
                "section": section,
                "key": name,
                "type": _describe_type(options[0]),
                "default": None if default == [] else default,
                "unit": options[0].get("unit") or _find_unit(name),
                "variable": name_variable(name) if is_setting and name != _SECRET else None,
                "meaning": said["description"],
            }


def _describe_type(said: Mapping[str, Any]) -> str:
    if "enum" in said:
        return " | ".join(said["enum"])
    words = {"integer": "whole number", "array": "text or list", "object": "table"}
    stored = said.get("type", "object")
    kind = words.get(stored, stored.replace("string", "text"))
    low = said.get("minimum", said.get("ge"))
    above = said.get("exclusiveMinimum", said.get("gt"))
    high = said.get("maximum", said.get("le"))
    bounds = [f">= {low}"] if low is not None else [] if above is None else [f"> {above}"]
    return ", ".join([kind, *bounds, *([] if high is None else [f"<= {high}"])])


def _find_unit(name: str) -> str | None:
    return next((unit for unit in _UNITS if unit in name.split("_")), None)


def _find_defaults() -> dict[str, Any]:
    """Find the settings' defaults, from the limits of the jobs that use them."""
    from memwal.jobs.compaction.plan import CompactionLimits
    from memwal.jobs.garbage.model import GarbageLimits
    from memwal.jobs.index_catchup.plan import CatchupLimits
    from memwal.jobs.merge.plan import MergeLimits
    from memwal.jobs.status.plan import AbandonedLimits, DueLimits
    from memwal.jobs.watch.request import FRESHNESS_SECONDS
    from memwal.model import PRIORITY
    from memwal.run.records import RUNS_KEPT_MAX
    from memwal.store.objects.base import StoreLimits
    from memwal.store.records.lease import TTL_SECONDS

    found: dict[str, Any] = {
        "engine": "auto",
        "log_format": "text",
        "freshness": FRESHNESS_SECONDS,
        "priority": PRIORITY,
        "lease_seconds": TTL_SECONDS,
        "runs_kept_max": RUNS_KEPT_MAX,
        "store_seconds_max": StoreLimits().retry_seconds_max,
        "sweep_seconds": GarbageLimits().sweep_seconds,
        **asdict(DueLimits()),
        **asdict(AbandonedLimits()),
        **asdict(MergeLimits()),
    }
    for job, limits in ("index-catchup", CatchupLimits()), ("compaction", CompactionLimits()):
        for name, value in asdict(limits).items():
            if found.setdefault(name, value) != value:
                found[name] = f"{found[name]} ({job}: {value})"
    return found
