"""Flow chart: is training waiting, which stage is at fault, and which page has the remedy."""

from __future__ import annotations

import matplotlib.pyplot as plt

WAITING = "#D55E00"
READY = "#009E73"
STAGE = "#0072B2"

figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
axes.set_xlim(0, 100)
axes.set_ylim(0, 50)
axes.axis("off")


def box(x: float, y: float, text: str, colour: str, width: float = 19) -> None:
    """Draw a box with its text around a point."""
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=10.5,
        bbox={
            "boxstyle": "round,pad=0.5",
            "facecolor": "white",
            "edgecolor": colour,
            "linewidth": 1.8,
        },
    )


def arrow(
    start: tuple[float, float], end: tuple[float, float], label: str = ""
) -> None:
    """Draw an arrow with a label at its middle."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "#555555"})
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    axes.text(
        *middle,
        label,
        fontsize=10,
        ha="center",
        va="center",
        bbox={"facecolor": "white", "edgecolor": "none"},
    )


box(50, 46, "Measure: DataMonitor, or lit-loader profile", "#555555")
arrow((40, 43), (18, 35.5), "waits for less than 5 %")
arrow((60, 43), (72, 35.5), "waits")
box(16, 32, "The step is the limit:\nmake it faster", READY)
box(72, 32, "Which cause does the first verdict name?", WAITING)

CAUSES = (
    (11, "decode", "decode='fast',\ncache=True"),
    (30.5, "read", "cache=True,\nlocal disk"),
    (50, "transform", "crop first,\nor on the device"),
    (69.5, "few workers,\nCPU bound,\nslow steps", "lit-loader tune"),
    (89, "hand-over,\ntransfer,\nepoch start", "threads, uint8,\nprefetch"),
)
for x, cause, remedy in CAUSES:
    arrow((72, 29), (x, 21))
    box(x, 17, cause, STAGE)
    arrow((x, 12.5), (x, 7.8))
    box(x, 4.5, remedy, READY)
plt.show()
