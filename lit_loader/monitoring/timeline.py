"""Timeline of a run as a picture: a lane for each worker, and one for the training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lit_loader.engine.stats import STAGES, BatchRecord
from lit_loader.foundation.extras import require
from lit_loader.monitoring.loop import StepRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["save_timeline"]

_Bar: TypeAlias = tuple[float, Mapping[Any, float]]
"""Start of a batch or a step in seconds, and the seconds of its parts."""

# Colours of Okabe and Ito, which people with a colour vision deficiency can tell apart.
_COLOURS: Final[Mapping[str, str]] = {
    "read": "#56B4E9",
    "decode": "#0072B2",
    "transform": "#009E73",
    "sample": "#CC79A7",
    "collate": "#F0E442",
    "send": "#E69F00",
    "waiting": "#D55E00",
    "between": "#BBBBBB",
    "step": "#555555",
}


def save_timeline(
    path: Path | str, batches: Sequence[BatchRecord], steps: Sequence[StepRecord], *, max_s: float = 10.0
) -> None:
    """Draw when workers made batches, by stages, and when the training loop waited and worked.

    The stages of a batch are drawn one after the other in the order of `STAGES`, though the samples of a batch pass
    them in turns.

    Args:
        path: Picture to write, of any format of matplotlib: PNG, SVG, PDF.
        batches: Recent batches of the loader.
        steps: Recent steps of the loop.
        max_s: Length of the timeline, which ends with the last record.

    Raises:
        ValueError: If both sequences are empty, or the format of ``path`` is unknown to matplotlib.
        ImportError: If matplotlib is not installed.
        OSError: If the file cannot be written.
    """
    if not batches and not steps:
        raise ValueError("the timeline has neither a batch nor a step; measure for longer")
    records: list[BatchRecord | StepRecord] = [*batches, *steps]
    ends = [record.end_s for record in records]
    begin_s = max(max(ends) - max_s, min(record.start_s for record in records))
    # The lanes of workers that are shown, in the order of their numbers.
    shown_batches = [record for record in batches if record.end_s >= begin_s]
    lanes = {worker: lane for lane, worker in enumerate(sorted({record.worker for record in shown_batches}), start=1)}
    size = (14, 1.6 + 0.45 * (1 + len(lanes)))
    figure: Figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    axes: Axes = figure.add_subplot()
    lane_bars: list[list[_Bar]] = [[] for _ in range(1 + len(lanes))]
    for record in shown_batches:
        lane_bars[lanes[record.worker]].append((record.start_s - begin_s, record.stage_s))
    for step in steps:
        if step.end_s >= begin_s:
            gap_s = step.step_start_s - step.start_s
            wait_s = min(step.wait_s, gap_s)
            parts = {"waiting": wait_s, "between": gap_s - wait_s, "step": step.end_s - step.step_start_s}
            lane_bars[0].append((step.start_s - begin_s, parts))
    for lane, bars in enumerate(lane_bars):
        _draw_lane(axes, lane, bars)
    axes.set_yticks(range(1 + len(lanes)), ["training", *(f"worker {worker}" for worker in lanes)])
    axes.invert_yaxis()
    axes.set_xlim(0, max(ends) - begin_s)
    axes.set_xlabel("seconds")
    patch = require("matplotlib.patches", "plot").Patch
    names = [*STAGES, "waiting", "between", "step"]
    handles = [patch(color=_COLOURS[name], label=name) for name in names]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names), frameon=False)
    figure.savefig(path)


def _draw_lane(axes: Axes, lane: int, bars: Sequence[_Bar]) -> None:
    """Draw bars whose parts are next to each other."""
    # One collection for each colour: thousands of single bars would take many seconds.
    ranges: dict[str, list[tuple[float, float]]] = {}
    ends: list[float] = []
    for start_s, parts in bars:
        for name, part_s in parts.items():
            ranges.setdefault(name, []).append((start_s, part_s))
            start_s += part_s
        ends.append(start_s)
    for name, parts_s in ranges.items():
        axes.broken_barh(parts_s, (lane - 0.35, 0.7), facecolors=_COLOURS[name])
    axes.vlines(ends, lane - 0.35, lane + 0.35, color="white", linewidth=0.6)
