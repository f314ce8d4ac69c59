"""Draws the scenarios of a fleet: load, waiting and reconnects over time."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.simulation.fleet.fleet import LOOK_SECONDS
from tests.simulation.fleet.measures import Measures
from tests.simulation.fleet.scenarios import SCENARIOS

__all__ = ["write_chart"]

LEAST, MEAN, MOST = "#9bc4c0", "#2a9d8f", "#c1554d"
WINDOW_SECONDS = 10.0
"""Waiting is drawn by windows of this length, by the time at which messages were sent."""


def write_chart(measures: Mapping[str, Measures], path: Path) -> None:
    """Write a row of three charts per scenario."""
    figure = Figure(figsize=(11, 2.1 * len(measures)), layout="constrained")
    rows = figure.subplots(len(measures), 3, squeeze=False)
    for (name, each), (load, waiting, opened) in zip(measures.items(), rows, strict=True):
        _load(load, each)
        _waiting(waiting, each)
        opened.plot([look.at for look in each.looks], [look.opened / LOOK_SECONDS for look in each.looks], color=MOST)
        opened.set_title("streams opened per second", fontsize=8)
        load.set_ylabel(name, fontsize=9)
        [phases] = [scenario.phases for scenario in SCENARIOS if scenario.name == name]
        for axes in (load, waiting, opened):
            axes.tick_params(labelsize=7)
            axes.set_ylim(bottom=0)
            for begin in np.cumsum([phase.seconds for phase in phases])[:-1]:
                axes.axvline(begin, color="grey", linewidth=0.6, linestyle=":")
    for axes in rows[-1]:
        axes.set_xlabel("virtual seconds", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "fleet"}):  # otherwise each run has other identifiers in the file
        figure.savefig(path, metadata={"Date": None})


def _load(axes: Axes, measures: Measures) -> None:
    looks = [look for look in measures.looks if look.streams]
    times = [look.at for look in looks]
    for label, color, of in (("most", MOST, np.max), ("mean", MEAN, np.mean), ("least", LEAST, np.min)):
        axes.plot(times, [float(of(look.streams)) for look in looks], color=color, label=label, linewidth=1)
    axes.set_title("streams of a server", fontsize=8)
    axes.legend(fontsize=6, loc="upper right")


def _waiting(axes: Axes, measures: Measures) -> None:
    at, seconds = np.array(measures.messages).T
    window = (at // WINDOW_SECONDS).astype(int)
    windows = np.unique(window)
    for percent, color in ((50, MEAN), (99, MOST)):
        values = [np.percentile(seconds[window == each], percent) for each in windows]
        axes.plot(windows * WINDOW_SECONDS, values, color=color, label=f"{percent} %", linewidth=1)
    axes.set_title("seconds until a message is answered", fontsize=8)
    axes.legend(fontsize=6, loc="upper right")
