"""The dashboard as a picture: its own layout, titles, legends and units, with what Prometheus answers.

Not Grafana's drawing of it: what it shows is where panels stand, how series are called and whether figures make sense.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploy.dashboard import WIDTH, dashboard
from tests.deploy.queries import asked

__all__ = ["draw", "legend_of"]

Ask = Callable[[str], list[dict[str, Any]]]
"""A query's series over time: `metric` with labels, `values` of time and text."""
UNITS = {"short": "", "cps": " c/s", "s": " s", "percentunit": " of 1", "Bps": " B/s"}


def legend_of(legend: str, labels: dict[str, str]) -> str:
    """The name of a series as Grafana makes it: a label that it has not is left empty."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), legend)


def draw(ask: Ask, path: Path) -> None:
    """Writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = dashboard()["panels"]
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = pyplot.figure(figsize=(WIDTH * 0.75, bottom * 0.42))
    for panel in panels:
        place = panel["gridPos"]
        left, width = (place["x"] + 0.9) / WIDTH, (place["w"] - 1.2) / WIDTH
        top, height = 1 - place["y"] / bottom, place["h"] / bottom
        if panel["type"] == "row":
            figure.text(0.005, top - height, panel["title"], fontsize=13, fontweight="bold")
            continue
        axes = figure.add_axes((left, top - height * 0.88, width, height * 0.68))
        axes.set_title(panel["title"], loc="left", fontsize=9)
        _fill(axes, panel, ask)
    figure.savefig(path, dpi=60)


def _fill(axes: Any, panel: dict[str, Any], ask: Ask) -> None:
    unit = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    series = [
        (legend_of(target["legendFormat"], each["metric"]), _points(each["values"]))
        for target in panel["targets"]
        for each in ask(asked(target["expr"]))
    ]
    if panel["type"] == "stat":
        axes.axis("off")
        figures = [f"{points[-1][1]:.3g}{unit}" for _, points in series if points]
        axes.text(0.5, 0.4, " ".join(figures) or "No data", fontsize=20, ha="center")
        return
    axes.tick_params(labelsize=6, labelbottom=False)
    axes.set_ylabel(unit.strip(), fontsize=6)
    for name, points in series:
        axes.plot(*zip(*points, strict=True), label=name) if points else None
    if any(points for _, points in series):
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=5, loc="upper left", ncols=2)
    else:
        axes.text(0.5, 0.5, "No data", ha="center", transform=axes.transAxes)


def _points(values: list[tuple[float, str]]) -> list[tuple[float, float]]:
    return [(float(time), float(text)) for time, text in values if math.isfinite(float(text))]
