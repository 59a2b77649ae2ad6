"""A picture of what was measured: rate, CPU time and memory against the number of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lit_loader.tuning.candidates import INLINE, Candidate
from lit_loader.tuning.figures import Figures

__all__ = ["save_plot"]

_PANELS: tuple[tuple[str, Callable[[Figures], float | None]], ...] = (
    ("samples/s", lambda each: each.samples_per_s),
    ("CPU ms a sample", lambda each: each.cpu_s_per_sample * 1e3),
    ("memory, MiB", lambda each: None if each.memory_bytes is None else each.memory_bytes / 2**20),
)


def save_plot(measured: Sequence[Figures], best: Candidate, path: Path | str, *, title: str) -> None:
    """Draw one line for each method and prefetch factor, inline as its first point, and mark the best settings.

    Args:
        measured: Medians, ``best`` among them.
        best: The settings that were picked.
        path: Where the picture is saved, in the format that its extension names.
        title: Stands above it.

    Raises:
        ValueError: If the extension names no format.
        OSError: If it cannot be written.
    """
    figure = Figure(figsize=(12, 4), layout="constrained")
    FigureCanvasAgg(figure)
    inline = [each for each in measured if each.candidate == INLINE]
    kinds = sorted({(e.candidate.method, e.candidate.prefetch_factor) for e in measured} - {("inline", 0)})
    for axis, (label, value) in zip(figure.subplots(1, 3), _PANELS, strict=True):
        for method, prefetch in kinds or [("inline", 0)]:
            own = [
                e for e in measured if (e.candidate.method, e.candidate.prefetch_factor) == (method, prefetch)
            ]
            line = sorted({*inline, *own}, key=lambda each: each.candidate.num_workers)
            axis.plot(
                [each.candidate.num_workers for each in line],
                [float("nan") if (y := value(each)) is None else y for each in line],
                marker="o",
                label=f"{method}, prefetch {prefetch}" if prefetch else method,
            )
        chosen = next(each for each in measured if each.candidate == best)
        if (height := value(chosen)) is not None:
            axis.plot(
                [best.num_workers], [height], marker="*", markersize=16, linestyle="", label=f"best: {best!s}"
            )
        axis.set_xlabel("num_workers")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
