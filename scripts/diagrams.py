"""Draws the pictures of the pages into docs/images/, as SVG without fonts or scripts of others.

Run it with `make reference`. A test compares the files with what this draws.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WRITERS, MEMWAL, STORED = "#dbeafe", "#ccfbf1", "#fef3c7"
_INK, _LINE = "#1f2937", "#64748b"
_HEAD_PX = 7


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box; the first line of its text is its name."""

    x: int
    y: int
    text: str
    fill: str
    width: int = 132
    height: int = 58


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """A line through points, with a head at its end; its text stands at `at`."""

    points: tuple[tuple[int, int], ...]
    text: str = ""
    at: tuple[int, int] = (0, 0)
    anchor: str = "start"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What is drawn, lowest first."""

    title: str
    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    notes: tuple[tuple[int, int, str], ...] = ()


OVERVIEW = Picture(
    title="Writers put rows into the MemWAL; memwal merges, indexes and collects what they flush",
    width=632,
    height=318,
    boxes=(
        Box(x=12, y=44, text="put, delete\nof your writers", fill=WRITERS),
        Box(x=167, y=44, text="WAL\ndurable at once", fill=STORED),
        Box(x=322, y=44, text="MemTable\nin memory", fill=WRITERS),
        Box(x=477, y=44, text="generations\nflushed, pending", fill=STORED),
        Box(x=477, y=196, text="base table\nrows, watermark", fill=STORED),
        Box(x=322, y=196, text="index catch-up\ncovers the rows", fill=MEMWAL),
        Box(x=167, y=196, text="snapshot\nlists the shards", fill=MEMWAL),
        Box(x=12, y=196, text="garbage\nneeds proof", fill=MEMWAL),
    ),
    arrows=(
        Arrow(points=((144, 73), (165, 73))),
        Arrow(points=((299, 73), (320, 73))),
        Arrow(points=((454, 73), (475, 73))),
        Arrow(
            points=((543, 102), (543, 194)),
            text="merge: rows and watermark, one commit",
            at=(532, 143),
            anchor="end",
        ),
        Arrow(points=((477, 225), (456, 225))),
        Arrow(points=((322, 225), (301, 225))),
        Arrow(points=((167, 225), (146, 225))),
        Arrow(
            points=((78, 254), (78, 282), (621, 282), (621, 20), (543, 20), (543, 42)),
            text="deletes what is merged, indexed and out of every time travel",
            at=(92, 303),
        ),
    ),
    notes=((12, 28, "your writers"), (12, 182, "memwal")),
)

GENERATION = Picture(
    title="The life of one generation, from a put to its deletion",
    width=620,
    height=260,
    boxes=(
        Box(x=12, y=20, text="WAL entries\ndurable when put", fill=STORED, width=150),
        Box(x=235, y=20, text="PENDING\nlisted by the shard", fill=WRITERS, width=150),
        Box(x=458, y=20, text="MERGED\nin the base table", fill=MEMWAL, width=150),
        Box(x=458, y=140, text="CAUGHT UP\nindexes cover it", fill=MEMWAL, width=150),
        Box(x=235, y=140, text="dropped\nqueries may finish", fill=MEMWAL, width=150),
        Box(x=12, y=140, text="deleted\nthen its WAL, too", fill=STORED, width=150),
    ),
    arrows=(
        Arrow(points=((162, 49), (233, 49)), text="flush", at=(197, 40), anchor="middle"),
        Arrow(points=((385, 49), (456, 49)), text="merge", at=(420, 40), anchor="middle"),
        Arrow(points=((533, 78), (533, 138)), text="index catch-up", at=(522, 112), anchor="end"),
        Arrow(points=((458, 169), (387, 169)), text="drop", at=(422, 160), anchor="middle"),
        Arrow(points=((235, 169), (164, 169)), text="delete", at=(199, 160), anchor="middle"),
    ),
    notes=(
        (235, 224, "drop: when no retained version,"),
        (235, 243, "tag or checkpoint needs it"),
        (12, 224, "delete: after the grace"),
    ),
)

AIRFLOW = Picture(
    title="Airflow runs memwal as a command in an environment of its own",
    width=620,
    height=346,
    boxes=(
        Box(x=12, y=44, text="plan\nwhat is due?", fill=WRITERS, width=170),
        Box(x=12, y=120, text="merge, garbage, …\na task a table", fill=WRITERS, width=170),
        Box(x=12, y=196, text="trigger\nwaits, if deferred", fill=WRITERS, width=170),
        Box(x=12, y=272, text="page\nshows the tables", fill=WRITERS, width=170),
        Box(x=398, y=44, text="memwal status\nwithout a JVM", fill=MEMWAL, width=210),
        Box(x=398, y=120, text="memwal merge, …\nor spark-submit", fill=MEMWAL, width=210),
        Box(x=398, y=196, text="run folder\nlog, report, exit code", fill=STORED, width=210),
        Box(x=398, y=272, text="memwal status, runs\nin the background", fill=MEMWAL, width=210),
    ),
    arrows=(
        Arrow(points=((182, 73), (396, 73)), text="starts", at=(289, 65), anchor="middle"),
        Arrow(points=((182, 149), (396, 149)), text="starts", at=(289, 141), anchor="middle"),
        Arrow(points=((503, 178), (503, 194))),
        Arrow(points=((398, 225), (184, 225)), text="is read by", at=(289, 217), anchor="middle"),
        Arrow(points=((182, 301), (396, 301)), text="starts", at=(289, 293), anchor="middle"),
    ),
    notes=((12, 28, "Airflow, with the provider"), (398, 28, "the jobs' environment")),
)

PICTURES = {"overview.svg": OVERVIEW, "generation.svg": GENERATION, "airflow.svg": AIRFLOW}


def draw(picture: Picture) -> str:
    """Return a picture as SVG, on a light ground of its own, so that it fits dark pages too."""
    size = f'width="{picture.width}" height="{picture.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {picture.width} {picture.height}" '
        f'{size} role="img" font-family="system-ui, sans-serif" fill="{_INK}">',
        f"<title>{escape(picture.title)}</title>",
        f'<rect {size} rx="10" fill="#ffffff"/>',
    ]
    for box in picture.boxes:
        lines += _draw_box(box)
    for arrow in picture.arrows:
        lines += _draw_arrow(arrow)
    for x, y, text in picture.notes:
        lines.append(_write(x, y, text, 'font-size="14" font-style="italic"'))
    return "\n".join([*lines, "</svg>", ""])


def _draw_box(box: Box) -> Iterable[str]:
    yield (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" '
        f'fill="{box.fill}" stroke="{_LINE}"/>'
    )
    middle, (name, more) = box.x + box.width // 2, box.text.split("\n")
    centred = 'text-anchor="middle"'
    yield _write(middle, box.y + 25, name, f'{centred} font-size="15" font-weight="600"')
    yield _write(middle, box.y + 45, more, f'{centred} font-size="14"')


def _draw_arrow(arrow: Arrow) -> Iterable[str]:
    points = " ".join(f"{x},{y}" for x, y in arrow.points)
    yield f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="2"/>'
    (x0, y0), (x, y) = arrow.points[-2:]
    dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
    back, side = (x - dx * _HEAD_PX, y - dy * _HEAD_PX), (dy * 5, dx * 5)
    head = ((x, y), *((back[0] + s * side[0], back[1] + s * side[1]) for s in (1, -1)))
    shown = " ".join(f"{a},{b}" for a, b in head)
    yield f'<polygon points="{shown}" fill="{_LINE}"/>'
    if arrow.text:
        yield _write(*arrow.at, arrow.text, f'text-anchor="{arrow.anchor}" font-size="14"')


def _write(x: int, y: int, text: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'


def main() -> None:
    """Write the pictures."""
    IMAGES.mkdir(exist_ok=True)
    for name, picture in PICTURES.items():
        (IMAGES / name).write_text(draw(picture))


if __name__ == "__main__":
    main()
