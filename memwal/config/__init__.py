"""The configuration file `memwal.toml`, checked at the edge. Values only; nothing is opened here.

A command-line flag beats the environment (`MEMWAL_*`), which beats a table's own section, which
beats `[patterns.GLOB]`, which beats `[defaults]`.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from memwal.config.keys import DURATIONS
from memwal.config.keys import AirflowDags as AirflowDags
from memwal.config.keys import BackupSettings as BackupSettings
from memwal.config.keys import CompactionMode as CompactionMode
from memwal.config.keys import Config as Config
from memwal.config.keys import EngineName as EngineName
from memwal.config.keys import ExpireSettings as ExpireSettings
from memwal.config.keys import PolicySettings as PolicySettings
from memwal.config.keys import Settings as Settings
from memwal.config.keys import TableSettings as TableSettings
from memwal.config.keys import WatchSettings as WatchSettings
from memwal.config.known_names import VARIABLES, check_variables
from memwal.config.known_names import check_options as check_options
from memwal.config.names import Folder as Folder
from memwal.config.names import Glob as Glob
from memwal.config.names import check_named as check_named
from memwal.config.names import explain_unknown, suggest
from memwal.config.names import find_glob as find_glob
from memwal.config.names import find_names as find_names
from memwal.config.names import is_address as is_address
from memwal.config.names import is_glob as is_glob
from memwal.config.names import match_names as match_names
from memwal.config.namespaces import OPTION as NAMESPACE_OPTION
from memwal.config.namespaces import NamespacedTable as NamespacedTable
from memwal.config.namespaces import NamespaceSettings as NamespaceSettings
from memwal.config.namespaces import find_namespaced as find_namespaced
from memwal.config.storage_options import LIMIT_OPTIONS, expand
from memwal.config.storage_options import STORAGE_OPTIONS_VARIABLE as STORAGE_OPTIONS_VARIABLE
from memwal.config.storage_options import read_environment_options as read_environment_options
from memwal.errors import NotATable, Usage
from memwal.options import PRIORITY
from memwal.rows.expire import Expire, make_expire
from memwal.rows.policy import RowPolicy
from memwal.text import count_of, format_duration
from memwal.text import mask_address as mask_address

AnySettings = TypeVar("AnySettings", bound=Settings)
DEFAULT_FILE = "memwal.toml"
RUN_ID_VARIABLE = "MEMWAL_RUN_ID"
AIRFLOW_TASK_VARIABLE = "MEMWAL_AIRFLOW_TASK"
SECTIONS: Mapping[str, type[BaseModel]] = {
    "defaults": Settings,
    "patterns.NAME": Settings,
    "tables.NAME": TableSettings,
    "tables.NAME.policy": PolicySettings,
    "tables.NAME.expire": ExpireSettings,
    "tables.NAME.backup": BackupSettings,
    "namespaces.NAME": NamespaceSettings,
    "watch": WatchSettings,
    "airflow": AirflowDags,
}
"""What stands in a file. `[tables.NAME]` takes the keys of `[defaults]`, too."""
# How pydantic begins a complaint.
_OUGHT = re.compile(r"^\w+ should (be |have |match )?")
_KINDS = {"string": "a text", "integer": "a whole number", "boolean": "true or false"}
_VALID = re.compile(r"a valid (\w+).*")
_BOUNDS = {"ge": "{} or more", "le": "{} or less", "gt": "more than {}"}
# What a local path does not begin with: an address, or a name in a namespace.
_NOT_A_PATH = re.compile(r"[A-Za-z0-9_][\w+.-]*:")
# Options that tell stores apart in which the same address is another table.
_PLACES = ("endpoint", "account_name", "base_url")
# An option has several spellings; `endpoint_url` is `endpoint`.
_SPELLING = re.compile("^(raw:)?((aws|google|azure_storage|azure)_)?|(?<=endpoint)_url$")


class ResolvedTable(BaseModel):
    """A TABLE argument after the configuration was looked up.

    `backup` is where its backups go, with storage options as `storage_options` has them;
    `backup_problem` why these can't be told. `unknown` is why a name can lead nowhere: it is in no
    configuration; `problem` why its settings can't be told.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    name: str
    uri: str
    settings: Settings
    storage_options: dict[str, str]
    policy: RowPolicy | None = None
    expire: Expire | None = None
    backup: BackupSettings | None = None
    backup_problem: str | None = None
    unknown: str | None = None
    problem: str | None = None

    @property
    def priority(self) -> int:
        """Whose turn comes first where tables wait; 9 before 1."""
        return self.settings.priority or PRIORITY

    @property
    def is_remote(self) -> bool:
        """Whether an object store has it: a read of it waits most of the time."""
        return "://" in self.uri and not self.uri.startswith("file:")

    def find_uri(self) -> str:
        """Where the table is. Raises Usage, and NotATable for a name that is no folder either."""
        if self.problem is not None:
            raise Usage(self.problem)
        # Unlike Path.exists, it raises for no name, however odd.
        if self.unknown is not None and not os.path.exists(self.uri):  # noqa: PTH110
            raise NotATable(self.unknown)
        return self.uri

    def find_backup_place(self) -> ResolvedTable:
        """Where its backups go, as a table of its own. Raises Usage where nothing names a place."""
        if self.backup is None:
            raise Usage(
                f"{self.name}: no place for its backups: give DEST, or set `uri` below "
                f"[tables.{self.name}.backup] in memwal.toml"
            )
        if self.backup_problem is not None:
            raise Usage(f"{self.name}: the place of its backups: {self.backup_problem}")
        return ResolvedTable(
            name=mask_address(self.backup.uri),
            uri=self.backup.uri,
            settings=self.settings,
            storage_options=self.backup.storage_options,
        )

    def with_settings(self, given: Settings) -> ResolvedTable:
        """The table with some settings, from a command line or a call, over those it has."""
        settings = self.settings.model_copy(update=given.model_dump(exclude_unset=True))
        return self.model_copy(update={"settings": settings})


def find_named_file(path: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The configuration file that somebody asked for: by `--config`, or by `MEMWAL_CONFIG`."""
    return path or environment.get("MEMWAL_CONFIG") or None


def load_config(path: str | None, environment: Mapping[str, str] = os.environ) -> Config:
    """Read the file at `path`, or `MEMWAL_CONFIG`, or `./memwal.toml` if there is one.

    Raises Usage for a missing file that was asked for, one of somebody else's that was not, bad
    TOML, or an unknown key (named).
    """
    asked = find_named_file(path, environment)
    file = Path(asked or DEFAULT_FILE)
    if not file.exists():
        if asked:
            raise Usage(f"{file}: no such configuration file")
        return Config()
    if not asked and not _is_own(file):
        raise Usage(
            f"{file.absolute()} belongs to another user, or everybody may write to it: a "
            f"configuration decides where requests and secrets go. --config {file} takes it, "
            "--config /dev/null none"
        )
    try:
        config = Config.model_validate(tomllib.loads(file.read_text("utf-8-sig")))
        return _place(config, file.absolute())
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"{file}: can't be read: {error}") from None
    except ValidationError as error:
        raise Usage(f"{file}: {_explain(error)}") from None
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is no TOMLDecodeError
        raise Usage(f"{file}: not valid TOML: {error}") from None


def _place(config: Config, file: Path) -> Config:
    """The configuration of that file: relative paths in it are beside it, wherever one runs."""

    def place_trail(settings: AnySettings) -> AnySettings:
        audit = settings.audit and _place_beside(settings.audit, file)
        return settings.model_copy(update={"audit": audit}) if audit else settings

    tables = {
        name: place_trail(table).model_copy(
            update={
                "uri": _place_beside(table.uri, file),
                "backup": table.backup
                and table.backup.model_copy(update={"uri": _place_beside(table.backup.uri, file)}),
            }
        )
        for name, table in config.tables.items()
    }
    patterns = {glob: place_trail(settings) for glob, settings in config.patterns.items()}
    placed = config.model_copy(
        update={
            "tables": tables,
            "patterns": patterns,
            "defaults": place_trail(config.defaults),
        }
    )
    placed._file = file
    return placed


def _place_beside(uri: str, file: Path) -> str:
    return uri if _NOT_A_PATH.match(uri) else str(file.parent / uri)


def _is_own(file: Path) -> bool:
    """Whether nobody but this user and root can have written the file, or put a link to it here."""
    ours = {os.geteuid(), 0}
    is_open = file.stat().st_mode & stat.S_IWOTH
    return not is_open and {file.stat().st_uid, file.lstat().st_uid} <= ours


def _explain(error: ValidationError) -> str:
    texts = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            near = suggest(str(problem["loc"][-1]), _list_keys(problem["loc"][:-1]))
            texts.append(f"unknown key {place!r}{near}")
        else:
            texts.append(f"{place}{_say(problem)}")
    return "; ".join(texts)


def _list_keys(place: Sequence[Any]) -> Sequence[str]:
    """The keys that the file may have there."""
    parts = [str(part) if at != 1 else "NAME" for at, part in enumerate(place)]
    model = SECTIONS.get(".".join(parts)) if parts else Config
    return () if model is None else list(model.model_fields)


def _say(problem: Mapping[str, Any]) -> str:
    """What follows a key whose value is wrong: ` VALUE: expected …`, as options say it."""
    kind, place, value = problem["type"], problem["loc"], problem["input"]
    if kind == "missing":
        return ": expected a value"
    said = _OUGHT.sub("expected ", str(problem["msg"]).removeprefix("Value error, "))
    if kind == "value_error":
        return f" {said}" if said.startswith("'") else f": {said}"
    can_be_shown = isinstance(value, str | int | float) and "storage_options" not in place
    said = _VALID.sub(lambda found: _KINDS.get(found[1], f"a {found[1]}"), said)
    is_duration = place[-1] in DURATIONS
    for sign, form in _BOUNDS.items():
        if (bound := problem.get("ctx", {}).get(sign)) is not None:
            said = "expected " + form.format(format_duration(bound) if is_duration else bound)
    if is_duration and str(value).isdigit() and int(value):
        said += f", such as '{value}d': {value} alone means {count_of(int(value), 'second')}"
    return f" {value!r}: {said}" if can_be_shown else f": {said}"


def resolve_table(
    table: str,
    config: Config,
    storage_options: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
) -> ResolvedTable:
    """Look TABLE up in the configuration, or take it as an address.

    An address is never looked up: whoever names one means that place, whatever a file says. Only a
    row-merge policy is the table's, by whatever name: rows would be merged without it. A name in a
    namespace, given here or as a table's `uri`, is not asked for yet: that is done by whoever
    opens the table.
    `${VARIABLE}` in a storage option is replaced from the environment (secrets belong there, not
    into the file). Raises Usage for a variable that is not set, or that would become part of the
    address which requests go to; for an option that is not known; and for a limit in the
    environment that can't be one.
    """
    section = None if is_address(table) else config.tables.get(table)
    merged: dict[str, Any] = config.find_settings(table).model_dump(exclude_none=True)
    options = merged.pop("storage_options")
    merged.update(read_environment_settings(environment))
    # An option of the command line also stands in for a variable that is not set.
    options = {k: expand(k, v, environment) for k, v in options.items() if k not in storage_options}
    options.update(storage_options)
    backup = None if section is None else section.backup
    expire = None if section is None else section.expire
    for key, option in LIMIT_OPTIONS.items():
        if (limit := merged.get(key)) is not None:
            options.setdefault(option, str(round(limit)))
    place = table if section is None else section.uri
    found = find_namespaced(place, config.namespaces, environment)
    options.pop(NAMESPACE_OPTION, None)  # from the configuration, and from nowhere else
    options = check_options(options)
    policy = None if section is None or section.policy is None else section.policy.policy()
    if section is None and found is None:
        policy = _find_policy(place, options, config, environment)
    if found is not None:
        options[NAMESPACE_OPTION] = found.encode()
    return ResolvedTable(
        name=mask_address(table) if section is None and found is None else table,
        uri=place if found is None else found.uri,
        settings=Settings.model_validate(merged),
        storage_options=options,
        policy=policy,
        expire=None if expire is None else make_expire(expire.column, expire.after),
        **(_resolve_backup(backup, options, environment) if backup else {}),
        unknown=explain_unknown(table, config) if section is None and found is None else None,
    )


def _resolve_backup(
    backup: BackupSettings, options: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Any]:
    """With the options that requests to its place take, or why there are none: only those who ask
    for the place need to know.
    """
    found = {k: v for k, v in options.items() if k != NAMESPACE_OPTION}
    if backup.storage_options:
        try:
            own = {k: expand(k, v, environment) for k, v in backup.storage_options.items()}
            limits = {k: v for k, v in options.items() if k in LIMIT_OPTIONS.values()}
            found = {**limits, **check_options(own)}
        except Usage as error:
            return {"backup": backup, "backup_problem": str(error)}
    return {"backup": backup.model_copy(update={"storage_options": found})}


def _find_policy(
    uri: str, options: Mapping[str, str], config: Config, environment: Mapping[str, str]
) -> RowPolicy | None:
    """What the configuration wants of a table that is given by its address. Raises Usage.

    It is the same place if the options lead to the same store, too.
    """
    found: dict[str, RowPolicy] = {}
    place = _normalise(uri), _pick_places(options)
    for name, section in config.tables.items():
        if section.policy is None or _normalise(section.uri) != place[0]:
            continue
        own = config.find_settings(name).storage_options
        there = {k: expand(k, v, environment) for k, v in _pick_places(own).items()}
        if there == place[1]:
            found[name] = section.policy.policy()
    if len({policy.as_text() for policy in found.values()}) > 1:
        raise Usage(
            f"{mask_address(uri)} is {' and '.join(found)} in {config.file}, with row-merge "
            "policies that differ: correct them, or name one"
        )
    return next(iter(found.values()), None)


def _normalise(uri: str) -> str:
    if _NOT_A_PATH.match(uri := uri.removeprefix("file://")):
        return uri.rstrip("/")
    return os.path.realpath(uri)  # as one may write it in several ways


def _pick_places(options: Mapping[str, str]) -> Mapping[str, str]:
    named = {_SPELLING.sub("", name.lower()): value for name, value in options.items()}
    return {n: v for n, v in named.items() if any(place in n for place in _PLACES)}


def read_environment_settings(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What `MEMWAL_…` variables say of the settings, each under its own name in capitals.

    Raises Usage, which names the variable, or one that looks misspelt. An empty one is not set.
    """
    check_variables(environment, {*VARIABLES, *map(name_variable, Settings.model_fields)})
    given = {
        name: text
        for name in Settings.model_fields
        if name != "storage_options" and (text := environment.get(name_variable(name), "").strip())
    }
    try:
        return Settings.model_validate(given).model_dump(exclude_unset=True)
    except ValidationError as error:
        texts = (f"{name_variable(str(p['loc'][0]))}{_say(p)}" for p in error.errors())
        raise Usage("; ".join(texts)) from None


def make_settings(**values: object) -> Settings:
    """The limits that somebody gives; what is left out is None. Raises Usage."""
    try:
        return Settings.model_validate({k: v for k, v in values.items() if v is not None})
    except ValidationError as error:
        raise Usage(_explain(error)) from None


def make_row_policy(lines: Sequence[str]) -> RowPolicy:
    """The policy that lines of `[tables.NAME.policy]` make. Raises Usage."""
    try:
        return PolicySettings.model_validate(tomllib.loads("\n".join(lines))).policy()
    except ValidationError as error:
        raise Usage(f"policy: {_explain(error)}") from None
    except (ValueError, RecursionError) as error:
        raise Usage(f"policy: not valid TOML: {error}") from None


def name_variable(setting: str) -> str:
    """The environment variable of a setting."""
    return f"MEMWAL_{setting.upper()}"
