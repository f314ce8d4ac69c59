"""Charts of results: the speed-up over each alternative, on one logarithmic axis."""

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

__all__ = ["write_chart"]

BETTER, WORSE = "#2a9d8f", "#c1554d"


def write_chart(suite: str, numbers: Mapping[str, float], directory: Path) -> Path | None:
    """Writes `<suite>.svg` with a bar per ratio `..._vs_...`; returns None if the suite has none."""
    ratios = {name: number for name, number in numbers.items() if "_vs_" in f"_{name}" and number > 0}
    if not ratios:
        return None
    names = list(ratios)
    figure = Figure(figsize=(9, 0.8 + 0.24 * len(names)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(names, [math.log10(ratio) for ratio in ratios.values()])
    for bar, ratio in zip(bars, ratios.values(), strict=True):
        bar.set_color(BETTER if ratio >= 1 else WORSE)
        axes.annotate(f"{ratio:.3g}", (bar.get_width(), bar.get_y() + bar.get_height() / 2), va="center", fontsize=8)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    ticks = range(
        math.floor(min(0.0, *map(math.log10, ratios.values()))), math.ceil(max(map(math.log10, ratios.values()))) + 1
    )
    axes.set_xticks([*ticks], [f"{10.0**tick:g}" for tick in ticks])
    axes.set_title(f"{suite}: ours over the other, times", fontsize=10)
    axes.tick_params(labelsize=8)
    path = directory / f"{suite}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path
