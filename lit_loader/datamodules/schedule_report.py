"""Schedules of a data module as a table for a terminal and as a picture."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from lit_loader.errors import SettingError
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.samplers import OrderSampler
from lit_loader.schedules import EpochSchedule, Schedule, is_defined, schedules_in, thinned_epochs
from lit_loader.transforms import ScheduledTransform

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_schedules", "named_schedules", "schedule_table"]

_MAX_COLUMNS: Final = 8
# A function has no breakpoints, so its course is shown by some epochs.
_FUNCTION_EPOCHS: Final = (1, 10, 100)
_FUNCTION_LENGTH: Final = 100
# More points than pixels of a picture would only take time.
_MAX_POINTS: Final = 1000


def named_schedules(name: str, value: Any) -> dict[str, Schedule]:
    """Return the schedules in settings by their names, such as ``train_transforms.hflip``.

    Args:
        name: Name of the settings.
        value: Transforms, a mapping or list of settings, or an object whose public attributes are settings.
    """
    return dict(_named_schedules(name, value))


def _named_schedules(name: str, value: Any) -> Iterator[tuple[str, Schedule]]:
    if isinstance(value, Schedule):
        yield name, value
    elif isinstance(value, ScheduledTransform):
        yield from _named_schedules(name, value.schedules())
    elif isinstance(value, OrderSampler):
        yield from _named_schedules(f"{name}.schedules", list(value.schedules))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_schedules(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _named_schedules(f"{name}[{index}]", item)
    elif hasattr(value, "transforms"):
        yield from _named_schedules(name, list(value.transforms))
    else:
        settings = {key: item for key, item in getattr(value, "__dict__", {}).items() if not key.startswith("_")}
        schedules = {key: item for key, item in settings.items() if schedules_in(item)}
        yield from _named_schedules(name, schedules)


def schedule_table(schedules: Mapping[str, Schedule]) -> str:
    """Format schedules as a table with their values in epoch 0 and at their breakpoints, at most eight epochs.

    Schedules without breakpoints, such as functions, are shown in epochs 1, 10 and 100 where they are defined. Choices
    of each batch are listed below the table.
    """
    epoch_schedules = {name: part for name, part in schedules.items() if isinstance(part, EpochSchedule)}
    lines = [f"{printable(name)}: {_text(part)}" for name, part in schedules.items() if name not in epoch_schedules]
    if not epoch_schedules:
        return "\n".join(["schedules, by batch", *lines])
    all_epochs = _shown_epochs(list(epoch_schedules.values()))
    epochs = thinned_epochs(all_epochs, _MAX_COLUMNS)
    if len(epochs) < len(all_epochs):
        lines.insert(0, f"{len(all_epochs) - len(epochs)} epochs with changes are not shown; see plot_schedules()")
    table = Table(title="schedules, by epoch", title_justify="left")
    table.add_column("setting", overflow="fold")
    for epoch in epochs:
        table.add_column(str(epoch), justify="right")
    for name, schedule in epoch_schedules.items():
        cells = [_text(schedule.at(epoch)) if is_defined(schedule, epoch) else "n/a" for epoch in epochs]
        table.add_row(printable(name), *cells)
    # A fixed width, so that the text does not depend on the terminal.
    stream = io.StringIO()
    Console(file=stream, width=100, markup=False).print(table)
    return "\n".join([stream.getvalue().rstrip(), *lines])


def _shown_epochs(schedules: Sequence[EpochSchedule]) -> list[int]:
    """Return epoch 0, the breakpoints, and some epochs of schedules without a last breakpoint, ascending."""
    epochs = {0}.union(*(schedule.breakpoints() for schedule in schedules))
    for schedule in schedules:
        if schedule.constant_from() is None:
            epochs |= {epoch for epoch in _FUNCTION_EPOCHS if is_defined(schedule, epoch)}
    return sorted(epochs)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return printable(str(value))


def draw_schedules(schedules: Mapping[str, Schedule], *, num_epochs: int | None = None) -> Figure:
    """Return a figure with the course of each schedule over the epochs.

    Args:
        schedules: The schedules by name.
        num_epochs: Number of epochs to show. None shows all breakpoints, and at least 100 epochs of a function.

    Raises:
        SettingError: ``schedules`` is empty, or ``num_epochs`` is below 1.
        ImportError: If matplotlib is not installed.
    """
    if not schedules:
        raise SettingError("schedules", {}, "has no schedule to draw", "give a setting as {points: {0: 0.5, 10: 0}}")
    if num_epochs is None:
        breakpoints = [part.breakpoints() for part in schedules.values() if isinstance(part, EpochSchedule)]
        last_epoch = max((epoch for epochs in breakpoints for epoch in epochs), default=0)
        num_epochs = last_epoch + max(1, last_epoch // 10) + 1
        if any(isinstance(part, EpochSchedule) and part.constant_from() is None for part in schedules.values()):
            num_epochs = max(num_epochs, _FUNCTION_LENGTH)
    if num_epochs < 1:
        raise SettingError("num_epochs", num_epochs, "must be at least 1")
    size = (8, 0.6 + 1.3 * len(schedules))
    figure: Figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(schedules), 1, squeeze=False, sharex=True)[:, 0]
    epochs = np.unique(np.linspace(0, num_epochs - 1, min(num_epochs, _MAX_POINTS)).astype(int)).tolist()
    for axis, (name, schedule) in zip(axes, schedules.items(), strict=True):
        axis.set_title(printable(name), fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        _draw_course(axis, schedule, epochs)
    axes[-1].set_xlim(0, num_epochs)
    axes[-1].set_xlabel("epoch", fontsize=9)
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    return figure


def _draw_course(axis: Any, schedule: Schedule, epochs: list[int]) -> None:
    """Draw the values of a schedule: a line for numbers and for each side of pairs, otherwise a step a text."""
    if not isinstance(schedule, EpochSchedule):
        end = epochs[-1] + 1
        # Drawn for every batch, so all values appear in all epochs.
        choices = [_number_or_text(choice) for choice in schedule.examples()]
        for choice in choices:
            axis.plot([0, end], [choice, choice], linestyle="dashed")
        return
    # A function may be defined only for the epochs of the run.
    epochs = [epoch for epoch in epochs if is_defined(schedule, epoch)]
    if not epochs:
        return
    end = epochs[-1] + 1
    values = [schedule.at(epoch) for epoch in epochs]
    if set(map(_text, values)) <= {"on", "off"}:
        # As numbers, because texts are drawn in the order in which they appear.
        values = [int(value == "on") for value in values]
        axis.set_yticks([0, 1], ["off", "on"])
        axis.set_ylim(-0.1, 1.1)
    rows = values if all(isinstance(value, list | tuple) for value in values) else [[value] for value in values]
    if len({len(row) for row in rows}) > 1:
        rows = [[_text(value)] for value in values]
    # A value lasts until the next epoch begins.
    for course in zip(*rows, strict=True):
        numbers = list(map(_number_or_text, course))
        if not all(isinstance(number, Real) for number in numbers):
            numbers = list(map(_text, course))
        axis.step([*epochs, end], [*numbers, numbers[-1]], where="post")


def _number_or_text(value: Any) -> Any:
    return value if isinstance(value, Real) else _text(value)
