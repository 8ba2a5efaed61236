"""`[namespaces.NAME]`: Lance namespaces, and the names of tables in them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from memwal.config.storage_options import expand
from memwal.errors import Usage
from memwal.text import mask_address

SCHEME = "namespace://"
OPTION = "memwal_namespace"
"""A storage option of ours: whom to ask for the table, and again for credentials. It goes with the
others to whoever opens the table, and to no store."""

_PLACES = {"dir": "root", "rest": "uri"}
_CODE = "dynamic_context_provider"


class NamespaceSettings(BaseModel):
    """`[namespaces.NAME]`: `impl`, and beside it the properties that pylance takes for it."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    impl: Literal["dir", "rest"] = Field(
        description="The kind; beside it stand the properties that pylance takes for it"
    )

    @model_validator(mode="after")
    def _is_whole(self) -> NamespaceSettings:
        if not self.properties().get(_PLACES[self.impl]):
            raise ValueError(f"impl {self.impl!r} needs {_PLACES[self.impl]!r}")
        if any(name.startswith(_CODE) for name in self.properties()):
            raise ValueError(f"{_CODE}: a configuration names no code")
        return self

    def properties(self) -> dict[str, str]:
        """By their names with dots, as they stand in the file. Raises ValueError."""
        return dict(_flatten("", self.model_extra or {}))

    def expand(self, namespace: str, environment: Mapping[str, str]) -> dict[str, str]:
        """The properties with `${VARIABLE}` replaced. Raises Usage, which shows no value."""
        place = _PLACES[self.impl]
        what = f"namespaces.{namespace}: property"
        return {
            name: expand(name, value, environment, what=what, is_place=name == place)
            for name, value in self.properties().items()
        }


def _flatten(prefix: str, found: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, Mapping):
            pairs += _flatten(f"{prefix}{name}.", value)
        elif isinstance(value, bool):
            pairs.append((f"{prefix}{name}", str(value).lower()))
        elif isinstance(value, str | int):
            pairs.append((f"{prefix}{name}", str(value)))
        else:
            raise ValueError(f"{prefix}{name}: expected a text, a number or a bool")
    return pairs


@dataclass(frozen=True, kw_only=True)
class NamespacedTable:
    """A table by its id in a namespace; in a glob, the last part of the id is the pattern."""

    namespace: str
    impl: str
    id: tuple[str, ...]
    properties: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        """As it is written: `NAME:schema.table`."""
        return f"{self.namespace}:{'.'.join(self.id)}"

    def name_beside(self, name: str) -> str:
        """Of another table of the same schema."""
        return f"{self.namespace}:{'.'.join((*self.id[:-1], name))}"

    def match(self, names: Iterable[str]) -> list[str]:
        """Which tables it stands for, of the names that are beside it."""
        return [self.name_beside(name) for name in names if fnmatchcase(name, self.id[-1])]

    @property
    def uri(self) -> str:
        """Stands for the table's address, which the namespace tells."""
        return f"{SCHEME}{self.namespace}/{'/'.join(self.id)}"

    def encode(self) -> str:
        """As the storage option `OPTION` has it. With the properties, and so with secrets."""
        found = {"namespace": self.namespace, "impl": self.impl, "id": self.id}
        return json.dumps({**found, "properties": dict(self.properties)}, sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> NamespacedTable:
        """The table of `encode`'s text."""
        found = json.loads(text)
        return cls(**{**found, "id": tuple(found["id"])})


def find_namespaced(
    table: str,
    namespaces: Mapping[str, NamespaceSettings],
    environment: Mapping[str, str] = os.environ,
) -> NamespacedTable | None:
    """The table that `NAME:schema.table` names; None for what is no such name. Raises Usage."""
    name, colon, rest = table.partition(":")
    if not colon or name not in namespaces or "/" in rest:
        return None
    parts = tuple(rest.split("."))
    if not all(parts):
        raise Usage(f"{mask_address(table)}: expected {name}:table or {name}:schema.table")
    properties = namespaces[name].expand(name, environment)
    return NamespacedTable(
        namespace=name, impl=namespaces[name].impl, id=parts, properties=properties
    )
