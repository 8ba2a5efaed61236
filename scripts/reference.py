"""Generates reference.md and documents.md in docs/reference/, and a guide's table, from the code.

Run it with `make reference`. A test compares the pages with the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from html import escape
from pathlib import Path
from typing import Any

import typer

from memwal import errors
from memwal.cli.app import app
from memwal.cli.commands import SECTIONS
from memwal.cli.flags import JobFlags, ReadFlags
from memwal.cli.schema import OTHERS, REPORTS, VERSION, make_schema
from memwal.config import SECTIONS as KEYS
from memwal.config import Settings, name_variable
from memwal.config.known_names import VARIABLES
from memwal.rows.conversions import MEANINGS
from memwal.rows.pairs import PAIRS, Rule
from memwal.run.metrics.sink import METRICS
from memwal.text import name_some

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference"
_GUIDE = "../guides/ingest.md"
_PAIRS_MARK = "<!-- made by `make reference` -->"
_MADE = "Made by `make reference` out of the code, which a test compares it with."
_LOOK = {field.name for field in fields(ReadFlags)}
_JOB = {field.name for field in fields(JobFlags)}
# Commands that only look accept these options silently, but do not need them.
_HIDDEN = {"engine", "master", "no_lease"}
_DEPTH_MAX = 6
_UNITS = ("rows", "bytes", "seconds", "percent", "generations", "shards", "tasks")
_SECRET = "storage_options"


def write_pages() -> dict[str, str]:
    """Return the text of every page, by its name."""
    pages = {
        "reference.md": _describe_all(),
        "documents.md": _describe_documents(),
        _GUIDE: _describe_pairs((PAGES / _GUIDE).read_text()),
    }
    return {
        name: re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
        for name, lines in pages.items()
    }


def _describe_all() -> Iterator[str]:
    yield "# Commands and settings\n"
    yield f"{_MADE} What `--json` prints: [JSON documents](documents.md).\n"
    yield from _describe_commands()
    yield from _describe_keys()
    yield "## Metrics\n\nHow to get them: [metrics](../operate/metrics.md).\n"
    labels = {m.name: ", ".join(f"`{label}`" for label in m.labels) or "-" for m in METRICS}
    rows = ((f"`{m.name}`", m.kind, labels[m.name], m.text.rstrip(".")) for m in METRICS)
    yield from _table(("metric", "kind", "labels", "meaning"), rows)
    yield from _describe_exits()


def _describe_pairs(page: str) -> Iterator[str]:
    """The guide to ingests, with the table of what goes into which column."""
    before, _, after = page.split(_PAIRS_MARK)
    rows = (
        (s.replace("_", " "), *map(_describe_rule, rules.values())) for s, rules in PAIRS.items()
    )
    meanings = ((f"`{name}`", meaning) for name, meaning in MEANINGS.items())
    yield before + _PAIRS_MARK
    yield ""
    yield from _table(("", *PAIRS["null"]), rows)
    yield from _table(("`--convert`", "what goes in changed"), meanings)
    yield _PAIRS_MARK + after


def _describe_rule(rule: Rule) -> str:
    words = ("yes" * rule.is_exact, f"`{rule.conversion}`" if rule.conversion else "")
    return ", ".join(filter(None, words))


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    heads = tuple(heads)
    yield from (f"| {' | '.join(heads)} |", "|" + "---|" * len(heads))
    for row in rows:
        yield f"| {' | '.join(map(_write_cell, row))} |"
    yield ""


def _write_cell(cell: object) -> str:
    """A cell's text; what has a `|` is code by its tags, as Markdowns differ about a backslash."""
    text = "" if cell is None else str(cell)
    if "|" in text:
        text = re.sub("`([^`]*)`", lambda code: f"<code>{escape(code[1])}</code>", text)
    return text.replace("|", "&#124;")


# ---- commands


def _describe_commands() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    status, merge = group.commands["status"], group.commands["merge"]
    yield "## Commands\n\nEvery command on tables takes:\n"
    yield from _describe_options(status, _LOOK)
    yield "Those that can change a table, marked \\*, also take:\n"
    yield from _describe_options(merge, (_JOB - _LOOK) | _HIDDEN)
    for title, names in SECTIONS.items():
        yield f"### {title}\n"
        for name in names.split():
            for words, command in _list_leaves(name, group.commands[name]):
                yield from _describe_command(words, command)


def _list_leaves(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    for name, below in getattr(command, "commands", {}).items():
        yield from _list_leaves(f"{words} {name}", below)
    if not hasattr(command, "commands"):
        yield words, command


def _describe_command(words: str, command: Any) -> Iterator[str]:
    places = [
        p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"
    ]
    mark = " \\*" if any(p.name == "dry_run" for p in command.params) else ""
    yield f"#### {words}\n"
    yield f"`{' '.join(places)}`{mark}\n" if places else ""
    yield re.sub(r"[ \t]*\n[ \t]*", "\n", command.help or "")
    yield ""
    shared = {p.name for p in command.params} & (_LOOK | _JOB)
    yield from _describe_options(command, {p.name for p in command.params} - shared)


def _describe_options(command: Any, names: Iterable[str]) -> Iterator[str]:
    found = [
        p
        for p in command.params
        if p.name in names and p.param_type_name == "option" and not p.hidden and p.name != "help"
    ]
    if found:
        yield from _table(("option", "default", "meaning"), map(_describe_option, found))


def _describe_option(option: Any) -> tuple[object, ...]:
    flags = "/".join((*option.opts, *option.secondary_opts))
    metavar = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    default = option.default
    is_shown = isinstance(default, str | int | float) and not isinstance(default, bool)
    variable = f" (`{option.envvar}`)" if option.envvar else ""
    return (
        f"`{flags}{metavar}`",
        f"`{default}`" if is_shown else None,
        (option.help or "") + variable,
    )


# ---- keys, variables, exit codes


def _describe_keys() -> Iterator[str]:
    yield (
        "## memwal.toml\n\n`[tables.NAME]` and "
        "`[patterns.GLOB]` take the keys of `[defaults]`, too. A unit may also\nbe written "
        'with the value (`"256MB"`, `"90s"`). '
        "What goes where: [configuration](../operate/configuration.md).\n"
    )
    keys = list(list_keys())
    for section in dict.fromkeys(key["section"] for key in keys):
        yield f"### [{section}]\n"
        own = [key for key in keys if key["section"] == section]
        yield from _table(("key", "type", "default", "unit", "meaning"), map(_describe_key, own))
        if any(key["variable"] for key in own):
            yield "Each but `storage_options` is also `MEMWAL_` and its name in capitals.\n"
    yield "## Environment\n"
    yield from _table(("variable", "meaning"), ((f"`{k}`", v) for k, v in VARIABLES.items()))


def list_keys() -> Iterator[dict[str, Any]]:
    """Yield every key."""
    standards = _find_defaults()
    for section, kind in KEYS.items():
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
    from memwal.model import FRESHNESS_SECONDS
    from memwal.options import PRIORITY
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


def _describe_key(key: Mapping[str, Any]) -> tuple[object, ...]:
    default = key["default"]
    shown = str(default).lower() if isinstance(default, bool) else default
    return (
        f"`{key['key']}`", key["type"], None if shown in (None, "") else f"`{shown}`", key["unit"],
        key["meaning"],
    )  # fmt: skip


def _describe_exits() -> Iterator[str]:
    where = "[trouble](../operate/trouble.md#when-something-fails)"
    yield f"## Exit codes\n\nWhat to do about each: {where}.\n"
    meanings = {
        errors.EXIT_DONE: "done, or nothing to do",
        errors.EXIT_CONDITION: "a condition of `status --fail-if` holds",
        errors.EXIT_CANCELLED: "cancelled; what was committed stays",
    }
    tree = re.findall(r"^(?:[├└]── )?\w+ +exit (\d) +(.*)$", errors.__doc__ or "", re.MULTILINE)
    for code, text in tree:
        meanings.setdefault(int(code), text)
    yield from _table(("code", "meaning"), sorted(meanings.items()))


# ---- documents


def _describe_documents() -> Iterator[str]:
    yield (
        f"# JSON documents\n\n{_MADE} JSON Schemas: `memwal schema merge`.\n"
        f"These are version {VERSION}: fields may be added to it; when one goes or changes, the "
        "version is raised.\n"
        "`?`: may be null. `[]`: a list. `{}`: by name.\n"
    )
    schemas = {name: make_schema(name) for name in (*REPORTS, *OTHERS)}
    found = {name: list(_list_fields(schema, schema, "")) for name, schema in schemas.items()}
    common = {*found[REPORTS[0]]}.intersection(*(found[name] for name in REPORTS))
    yield from _show_fields("every report", (f for f in found[REPORTS[0]] if f in common))
    for name, listed in found.items():
        yield f"## {name}\n\n{_first_text(schemas[name])}\n"
        own = [field for field in listed if name in OTHERS or field not in common]
        yield from _show_fields("", own)


def _show_fields(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from (f"## {title}\n" if title else "", "```", *dict.fromkeys(lines), "```\n")


def _first_text(schema: Mapping[str, Any]) -> str:
    """Return the description from the document's own class, if it has one."""
    found = (_resolve(schema, option) for option in (schema, *schema.get("anyOf", ())))
    text = next(filter(None, (option.get("description") for option in found)), "")
    return "" if text.startswith("The one document") else str(text)


def _resolve(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    ref = part.get("$ref")
    return schema["$defs"][ref.rpartition("/")[2]] if ref else part


def _list_fields(schema: Mapping[str, Any], part: Mapping[str, Any], path: str) -> Iterator[str]:
    """List the paths below a part of a schema, each with its type."""
    part = _resolve(schema, part)
    options = [_resolve(schema, option) for option in part.get("anyOf", (part,))]
    whole = [option for option in options if option.get("type") != "null"]
    if path.count(".") > _DEPTH_MAX:
        return
    for option in whole:
        if "properties" in option:
            for name, below in option["properties"].items():
                yield from _list_fields(schema, below, f"{path}.{name}" if path else name)
        elif option.get("type") == "array":
            yield from _list_fields(schema, option.get("items", {}), f"{path}[]")
        elif isinstance(option.get("additionalProperties"), Mapping) and path:
            yield from _list_fields(schema, option["additionalProperties"], f"{path}{{}}")
        elif len(option) and "anyOf" in option:
            yield from _list_fields(schema, option, path)
        else:
            null = "?" if len(whole) < len(options) else ""
            kinds = sorted({str(o.get("type", "any")) for o in whole})
            yield f"{path}: {' or '.join(kinds)}{null}"


def check_version(page: str, before: str) -> list[str]:
    """Return the fields that have gone from the page although the version is unchanged."""
    version = f"These are version {VERSION}:"
    if version not in before:
        return []
    return sorted(_fields(before) - _fields(page))


def _fields(page: str) -> set[str]:
    parts = re.findall(r"^## ([\w -]+)\n.*?^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return {f"{name}: {line}" for name, lines in parts for line in lines.splitlines()}


def main() -> None:
    """Write the pages, unless a field has gone and the version is unchanged."""
    pages = write_pages()
    documents = PAGES / "documents.md"
    lost = check_version(pages["documents.md"], documents.read_text()) if documents.exists() else []
    if lost:
        shown = ", ".join(name_some(lost, 10, "more"))
        raise SystemExit(f"raise VERSION in memwal/cli/schema.py, or bring back: {shown}")
    for name, text in pages.items():
        (PAGES / name).write_text(text)


if __name__ == "__main__":
    main()
