"""PNG plots of a results file."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

_MET, _MISSED = "#2a7f62", "#c0562b"


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """One plot of all targets, and one for each name of `plot` among the series."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [_targets(results, folder / "targets.png")]
    plots: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for case in results["cases"]:
        for series in case["series"]:
            plots[series["plot"]].append(series)
    for name, series in plots.items():
        written.append(_lines(series, folder / (name.replace(" ", "-") + ".png")))
    return written


def _targets(results: dict[str, Any], file: Path) -> Path:
    """How much of its allowance each figure uses: below 1 the target is met."""
    figures = [f for case in results["cases"] for f in case["figures"] if f["met"] is not None]
    shares = [_share(figure) for figure in figures]
    names = [f"{f['case']}  {f['what']}" for f in figures]
    figure, axes = plt.subplots(figsize=(9, 0.2 * len(names) + 1))
    colours = [_MET if f["met"] else _MISSED for f in figures]
    axes.barh(range(len(names)), [max(s, 1e-3) for s in shares], color=colours)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("share of the target's allowance (left of the line: met)")
    for place, (told, share) in enumerate(zip(figures, shares, strict=True)):
        text = f" {told['value']:.3g} {told['unit']}"
        axes.text(max(share, 1e-3), place, text, va="center", fontsize=7)
    return _save(figure, file)


def _share(figure: dict[str, Any]) -> float:
    target, value = figure["target"], figure["value"]
    if target["at_most"] is not None:
        if not target["at_most"]:
            return 0.0 if value <= 0 else 2.0
        return float(value / target["at_most"])
    return float(target["at_least"] / value) if value else math.inf


def _lines(series: list[dict[str, Any]], file: Path) -> Path:
    figure, axes = plt.subplots(figsize=(6, 3.6))
    for one in series:
        xs, ys = zip(*one["points"], strict=True)
        axes.plot(xs, ys, marker="o" if len(xs) < 40 else None, markersize=4, label=one["name"])
    axes.set_xlabel(series[0]["x_label"])
    axes.set_ylabel(series[0]["y_label"])
    if any(one["log"] for one in series):
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if len(series) > 1:
        axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return _save(figure, file)


def _save(figure: Any, file: Path) -> Path:
    figure.savefig(file, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return file
