"""Random types that change at random: what `align` and `convert` make of values, by a model."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from memwal.rows.convert import convert

from memwal.model import ColumnInfo
from memwal.rows.align import align

WIDER = {"int8": "int32", "int32": "int64", "string": "large_string", "float": "double"}


@dataclass(frozen=True)
class Node:
    """A field: `kind` is a plain type, struct, list, large_list, pair or map."""

    field_id: int
    name: str
    kind: str
    children: tuple[Node, ...] = ()
    former: tuple[str, ...] = field(default=())

    @property
    def type(self) -> pa.DataType:
        inner = [pa.field(child.name, child.type) for child in self.children]
        match self.kind:
            case "struct":
                return pa.struct(inner)
            case "list":
                return pa.list_(inner[0])
            case "large_list":
                return pa.large_list(inner[0])
            case "pair":
                return pa.list_(inner[0], 2)
            case "map":
                return pa.map_(pa.string(), self.children[0].children[1].type)
        return pa.type_for_alias(self.kind)

    @property
    def column(self) -> ColumnInfo:
        return ColumnInfo(
            field_id=self.field_id,
            name=self.name,
            type_text=str(self.type),
            nullable=self.name != "key",
            children=tuple(child.column for child in self.children),
            former_types=self.former,
        )


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ids = count()

    def make(self, name: str, depth: int) -> Node:
        kinds = [*WIDER, *(("struct", "list", "pair", "map") if depth else ())]
        kind, number = self.chance.choice(kinds), next(self.ids)
        if kind == "struct":
            inner = [self.make(f"m{n}", depth - 1) for n in range(self.chance.randint(1, 3))]
        elif kind == "map":
            key = Node(next(self.ids), "key", "string")
            entries = (key, self.make("value", depth - 1))
            inner = [Node(next(self.ids), "entries", "struct", entries)]
        else:
            inner = [self.make("item", depth - 1)] if kind in ("list", "pair") else []
        return Node(number, name, kind, tuple(inner))

    def evolve(self, old: Node) -> Node:
        def lucky() -> bool:
            return self.chance.random() < 0.5

        if not old.children:
            wider = WIDER.get(old.kind)
            if wider is None or not lucky():
                return old
            return replace(old, kind=wider, former=(*old.former, old.kind))
        if old.kind == "map":
            (entries,) = old.children
            value = self.evolve(entries.children[1])
            return replace(old, children=(replace(entries, children=(entries.children[0], value)),))
        inner = [self.evolve(child) for child in old.children]
        if old.kind in ("list", "pair"):
            kind = "large_list" if old.kind == "list" and lucky() else old.kind
            return replace(old, kind=kind, children=tuple(inner))
        kept = [replace(c, name=f"r{c.name}") if lucky() else c for c in inner if lucky()]
        new = [self.make(f"n{n}", 1) for n in range(1 - bool(kept) + lucky())]
        shuffled = [*kept, *new]
        self.chance.shuffle(shuffled)
        return replace(old, children=tuple(shuffled))

    def value(self, node: Node) -> Any:
        if self.chance.random() < 0.2 and node.name != "key":
            return None
        match node.kind:
            case "struct":
                return {child.name: self.value(child) for child in node.children}
            case "list":
                return [self.value(node.children[0]) for _ in range(self.chance.randint(0, 3))]
            case "pair":
                return [self.value(node.children[0]) for _ in range(2)]
            case "map":
                inner = self.chance.randint(0, 3)
                value = node.children[0].children[1]
                return [(f"k{n}", self.value(value)) for n in range(inner)]
            case "string":
                return self.chance.choice(["", "ä", "text"])
            case "float":
                return self.chance.choice([0.0, -1.5])
        return self.chance.randint(-128, 127)


def model(value: Any, old: Node, new: Node) -> Any:
    if value is None or not new.children:
        return value
    if new.kind == "map":
        one, other = (node.children[0].children[1] for node in (old, new))
        return [(key, model(item, one, other)) for key, item in value]
    if new.kind != "struct":
        return [model(item, old.children[0], new.children[0]) for item in value]
    by_id = {child.field_id: child for child in old.children}
    return {
        child.name: model(value[was.name], was, child)
        if (was := by_id.get(child.field_id)) is not None
        else None
        for child in new.children
    }


@pytest.mark.parametrize("seed", range(60))
def test_values_of_an_older_type_are_those_of_the_model(seed: int) -> None:
    world = World(seed)
    old = world.make("c", 3)
    new = world.evolve(old) if old.children else world.evolve(world.evolve(old))
    values = [world.value(old) for _ in range(12)]
    array = pa.array(values, old.type)
    aligned = align([new.column], [old.column]).settle(lambda _: True, "generation", ())
    for start, stop in ((0, 12), (3, 9), (5, 5)):
        found = array[start:stop]
        if "c" in aligned.changes:
            found = convert(found, new.type, aligned.changes["c"])
        found.validate(full=True)
        assert found.type == new.type
        assert found.to_pylist() == [model(value, old, new) for value in values[start:stop]]
