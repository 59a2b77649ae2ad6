"""Schedules: settings that are functions of the epoch, or that are drawn for every global batch.

NOTE [Schedules and workers]
    A schedule has no state that somebody would have to advance, and that a worker, a prepared epoch or a resumed run
    could miss. It takes the epoch from the key of the sample that is being made (`lit_loader.current_epoch`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from numbers import Real
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from lit_loader.errors import SettingError
from lit_loader.seeding import current_batch, current_epoch, hash_u64, key64
from lit_loader.seeding.generators import context

__all__ = [
    "BatchChoice",
    "EpochRange",
    "EpochSchedule",
    "FunctionSchedule",
    "LinearSchedule",
    "Schedule",
    "Scheduled",
    "ScheduledInt",
    "as_schedule",
    "current_value",
    "example_epochs",
    "schedules_in",
    "value_at",
]

_MAX_DIGITS: Final = 9
"""Largest number of digits of an epoch in a text."""


class Schedule(ABC):
    """A setting whose value depends on the sample's epoch, or on its global batch."""

    @abstractmethod
    def current(self) -> Any:
        """Return the value for the sample that is being made.

        Raises:
            RuntimeError: Outside of a seeded loader, see `lit_loader.current_epoch`.
        """

    @abstractmethod
    def examples(self) -> list[Any]:
        """Return values that the setting will take, so that a wrong one fails before the run."""

    def final(self) -> Any:
        """Return the value for evaluation, which is the same in all epochs.

        Raises:
            SettingError: The schedule has no last value.
        """
        rule = "has no last value, which evaluation uses"
        raise SettingError("schedule", str(self), rule, "give evaluation a value of its own, as in val_transforms")


class EpochSchedule(Schedule):
    """A schedule that depends on the epoch alone; a subclass defines `at`."""

    @abstractmethod
    def at(self, epoch: int) -> Any:
        """Return the value in an epoch, from 0."""

    def breakpoints(self) -> tuple[int, ...]:
        """Return the epochs at which the course of the value changes, ascending."""
        return ()

    def constant_from(self) -> int | None:
        """Return the first epoch from which on the value stays the same, or None if it is unknown."""
        return None

    def current(self) -> Any:
        """Return the value for the sample that is being made; see `Schedule.current`."""
        return self.at(current_epoch())

    def example_epochs(self) -> list[int]:
        """Return epoch 0 and the breakpoints, then the epoch before each, and the epochs halfway between all these."""
        changes = {0, *self.breakpoints()}
        epochs = changes | {max(0, epoch - 1) for epoch in changes}
        epochs |= {(first + second) // 2 for first, second in pairwise(sorted(epochs))}
        # A wrong value is reported where somebody wrote it, not by an epoch on the way there.
        return [*sorted(changes), *sorted(epochs - changes)]

    def examples(self) -> list[Any]:
        """Return the value in each of the `example_epochs`."""
        return [self.at(epoch) for epoch in self.example_epochs()]

    def final(self) -> Any:
        """Return the value after the last change; see `Schedule.final`."""
        epoch = self.constant_from()
        return super().final() if epoch is None else self.at(epoch)

    def __str__(self) -> str:
        return type(self).__qualname__


@dataclass(frozen=True)
class LinearSchedule(EpochSchedule):
    """Linear between points, and constant before the first and after the last.

    Args:
        points: The value at some epochs, as a mapping ``{0: 0.5, 10: 0.0}`` or as pairs ``[[0, 0.5], [10, 0]]``. In a
            mapping, epochs may also be texts such as ``"10"``, because JSON has no other keys.
        step: None, or a positive whole number: values are rounded to a multiple of it, as ints. Use it for sizes.

    Raises:
        SettingError: ``points`` is empty, an epoch is repeated or no whole number from 0, or a value is not finite.
    """

    points: Mapping[int, float] | Sequence[Sequence[float]]
    step: int | None = None

    def __post_init__(self) -> None:
        if self.step is not None and (type(self.step) is not int or self.step < 1):
            raise SettingError("step", self.step, "must be a positive whole number, or null")
        object.__setattr__(self, "points", _checked_points(self.points))

    def at(self, epoch: int) -> float:
        """Return the value in an epoch, with 12 digits."""
        epochs, values = self._arrays
        # Interpolation differs between machines beyond these digits.
        value = float(f"{np.interp(epoch, epochs, values):.12g}")
        return value if self.step is None else math.floor(value / self.step + 0.5) * self.step

    def breakpoints(self) -> tuple[int, ...]:
        """Return the epochs of the points."""
        return tuple(epoch for epoch, _ in self._pairs)

    def constant_from(self) -> int:
        """Return the epoch of the last point."""
        return self._pairs[-1][0]

    @property
    def _pairs(self) -> tuple[tuple[int, float], ...]:
        # `__post_init__` has replaced the points, so that a schedule can be hashed.
        return cast("tuple[tuple[int, float], ...]", self.points)

    @cached_property
    def _arrays(self) -> npt.NDArray[np.float64]:
        """Epochs and values of the points, float64 ``(2, n)``; converting them takes longer than interpolating."""
        return np.array(self.points, dtype=np.float64).T.copy()

    def __str__(self) -> str:
        points = ", ".join(f"{value:g} at {epoch}" for epoch, value in self._pairs)
        return f"linear through {points}{'' if self.step is None else f', in steps of {self.step}'}"


def _checked_points(points: Any) -> tuple[tuple[int, float], ...]:
    pairs = points
    if isinstance(points, Mapping):
        pairs = [(_epoch_of_key(key), value) for key, value in points.items()]
    rule = "must have a value for at least one epoch, such as {0: 0.5, 10: 0.0}"
    if isinstance(pairs, str) or not isinstance(pairs, Sequence) or not pairs:
        raise SettingError("points", points, rule)
    checked: dict[int, float] = {}
    for pair in pairs:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise SettingError("points", points, rule)
        epoch, value = pair
        if type(epoch) is not int or epoch < 0 or epoch in checked:
            raise SettingError("points", points, f"has the epoch {epoch!r}; epochs are different whole numbers from 0")
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise SettingError("points", points, f"has the value {value!r} at epoch {epoch}; values are finite numbers")
        checked[epoch] = float(value)
    return tuple(sorted(checked.items()))


def _epoch_of_key(key: Any) -> Any:
    """Return a key of a JSON mapping as a number, and any other key unchanged."""
    is_number = isinstance(key, str) and len(key) <= _MAX_DIGITS and key.isascii() and key.isdigit()
    return int(key) if is_number else key


@dataclass(frozen=True)
class EpochRange(EpochSchedule):
    """One value in a range of epochs, and another value outside of it.

    Args:
        epochs: First epoch of the range, and the first epoch after it, as for ``range``: ``[0, 85]`` ends after epoch
            84. None as the second entry means a range without an end.
        value: The value in the range.
        otherwise: The value outside of it.

    Raises:
        SettingError: The epochs are not two whole numbers from 0 in ascending order, or a value is a schedule itself.
    """

    epochs: Sequence[int | None]
    value: Any = 1.0
    otherwise: Any = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epochs", checked_epochs(self.epochs))
        _check_plain("value", self.value)
        _check_plain("otherwise", self.otherwise)

    def at(self, epoch: int) -> Any:
        """Return the value in an epoch."""
        return self.value if in_range(epoch, self.epochs) else self.otherwise

    def breakpoints(self) -> tuple[int, ...]:
        """Return the ends of the range."""
        return tuple(epoch for epoch in self.epochs if epoch is not None)

    def constant_from(self) -> int:
        """Return the last of the ends."""
        return self.breakpoints()[-1]

    def __str__(self) -> str:
        return f"{self.value} {epochs_text(self.epochs)}, else {self.otherwise}"


def checked_epochs(epochs: Any) -> tuple[int, int | None]:
    """Return a range of epochs as a tuple of its first epoch and the first epoch after it, or None without an end.

    Raises:
        SettingError: It is not two whole numbers from 0 in ascending order.
    """
    rule = "must be the first epoch and the first epoch after the range, such as [0, 85], or [5, null] without an end"
    if isinstance(epochs, str) or not isinstance(epochs, Sequence) or len(epochs) != 2:
        raise SettingError("epochs", epochs, rule)
    first, end = epochs
    if type(first) is not int or first < 0 or (end is not None and (type(end) is not int or end <= first)):
        raise SettingError("epochs", epochs, rule)
    return first, end


def _check_plain(name: str, value: Any) -> None:
    """Refuse a schedule or a mapping as a value of a schedule, also in lists."""
    if isinstance(value, Schedule | Mapping):
        text = str(value) if isinstance(value, Schedule) else dict(value)
        remedy = "write one schedule, such as {points: {0: 0.5, 10: 0.5, 11: 0.0}}, or give a FunctionSchedule"
        raise SettingError(name, text, "is inside of a schedule, which has plain values", remedy)
    for item in value if isinstance(value, list | tuple) else ():
        _check_plain(name, item)


def in_range(epoch: int, epochs: Sequence[int | None]) -> bool:
    """Return True if an epoch is in a range that `checked_epochs` returned."""
    first, end = epochs
    assert first is not None
    return epoch >= first and (end is None or epoch < end)


def epochs_text(epochs: Sequence[int | None]) -> str:
    """Return a range of epochs as text, such as ``in epochs 0 to 84``."""
    first, end = epochs
    assert first is not None
    if end is None:
        return f"from epoch {first} on"
    return f"in epoch {first}" if end == first + 1 else f"in epochs {first} to {end - 1}"


@dataclass(frozen=True)
class FunctionSchedule(EpochSchedule):
    """A function of the epoch.

    A sampler that continues cycles of images calls it once for every earlier epoch, also when a run resumes; other
    schedules are constant after their last breakpoint, and need no such calls from there on.

    Args:
        function: Takes the epoch and returns the value. It must depend on nothing else, and be picklable (a function of
            a module) where workers are spawned.

    Raises:
        SettingError: It is not callable.
    """

    function: Callable[[int], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SettingError("function", self.function, "must be a function of the epoch")

    def at(self, epoch: int) -> Any:
        """Return the value in an epoch.

        Raises:
            SettingError: The function raises an error there.
        """
        try:
            return self.function(epoch)
        except Exception as error:
            rule = f"has no value in epoch {epoch}: {type(error).__name__}: {error}"
            raise SettingError("function", str(self), rule, "define it for every epoch of the run") from error

    def __str__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{name}(epoch)"


@dataclass(frozen=True)
class BatchChoice(Schedule):
    """One of several values, drawn for every global batch, the same for all its samples on all ranks.

    The draw is a hash of (seed, epoch, number of the batch), so all `BatchChoice` of equal length draw the same place.

    Args:
        choices: The values, such as sizes in pixels.

    Raises:
        SettingError: ``choices`` is empty, or has a schedule among them.
    """

    choices: Sequence[Any]

    def __post_init__(self) -> None:
        if isinstance(self.choices, str) or not isinstance(self.choices, Sequence) or not self.choices:
            raise SettingError("choices", self.choices, "must be a list of values, such as [320, 384, 448]")
        _check_plain("choices", list(self.choices))
        # Hashable, as the values of all schedules.
        choices = (tuple(choice) if isinstance(choice, list) else choice for choice in self.choices)
        object.__setattr__(self, "choices", tuple(choices))

    def current(self) -> Any:
        """Return the value for the sample that is being made; see `Schedule.current`."""
        number = current_batch()
        epoch = current_epoch()
        assert context.key_parts is not None
        key = key64(context.key_parts[0].seed, "batch choice", epoch)
        return self.choices[int(hash_u64(key, np.array([number]))[0]) % len(self.choices)]

    def examples(self) -> list[Any]:
        """Return the choices."""
        return list(self.choices)

    def final(self) -> Any:
        """Return the largest choice, by area if choices are pairs; the last one if they have no order."""
        if all(isinstance(choice, Real) for choice in self.choices):
            return max(self.choices)
        if all(isinstance(choice, tuple) and all(isinstance(side, Real) for side in choice) for choice in self.choices):
            return max(self.choices, key=math.prod)
        return self.choices[-1]

    def __str__(self) -> str:
        return f"one of {list(self.choices)} a batch"


Scheduled: TypeAlias = float | Schedule | Mapping[str, Any]
"""A number, a schedule, or a mapping that `as_schedule` converts to one."""

ScheduledInt: TypeAlias = int | Schedule | Mapping[str, Any]
"""The same for a whole number."""

_KINDS: tuple[tuple[type[Any], str, frozenset[str]], ...] = (
    (LinearSchedule, "points", frozenset({"points", "step"})),
    (EpochRange, "epochs", frozenset({"epochs", "value", "otherwise"})),
    (BatchChoice, "choices", frozenset({"choices"})),
)


def as_schedule(value: Any) -> Any:
    """Convert mappings that describe schedules, also in lists; return anything else unchanged.

    Args:
        value: A mapping with ``points`` (and ``step``), with ``epochs`` (and ``value``, ``otherwise``), or with
            ``choices`` becomes a `LinearSchedule`, an `EpochRange` or a `BatchChoice`. It may be of any class, such as
            one of OmegaConf.

    Raises:
        SettingError: Such a mapping has another key, or a wrong value.
    """
    if isinstance(value, Mapping):
        for kind, name, keys in _KINDS:
            if name in value:
                if unknown := sorted(map(str, set(value) - keys)):
                    raise SettingError(unknown[0], value[unknown[0]], f"is not one of {sorted(keys)}")
                return kind(**{key: _plain(item) for key, item in value.items()})
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [as_schedule(item) for item in value]
        return items if schedules_in(items) else value
    return value


def _plain(value: Any) -> Any:
    """Convert mappings and sequences of any class to dicts and lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def example_epochs(schedules: Iterable[Schedule]) -> list[int]:
    """Return epoch 0 and the breakpoints of schedules, then their other `EpochSchedule.example_epochs`.

    An epoch in which one of them is undefined is left out, unless it is an example of this schedule itself: a function
    may be defined only for the epochs of the run.
    """
    epoch_schedules = [schedule for schedule in schedules if isinstance(schedule, EpochSchedule)]
    changes = {0}.union(*(schedule.breakpoints() for schedule in epoch_schedules))
    epochs = changes.union(*(schedule.example_epochs() for schedule in epoch_schedules))
    return [
        epoch
        for epoch in [*sorted(changes), *sorted(epochs - changes)]
        if all(epoch in schedule.example_epochs() or is_defined(schedule, epoch) for schedule in epoch_schedules)
    ]


def thinned_epochs(epochs: Sequence[int], limit: int) -> list[int]:
    """Return at most ``limit`` of some epochs, evenly spaced, with the first and the last."""
    if len(epochs) <= limit:
        return list(epochs)
    return [epochs[round(place)] for place in np.linspace(0, len(epochs) - 1, limit).tolist()]


def is_defined(schedule: EpochSchedule, epoch: int) -> bool:
    """Return True if a schedule has a value in an epoch, as all but functions have in every epoch."""
    try:
        schedule.at(epoch)
    except Exception:  # a user's function may raise any error
        return False
    return True


def located(error: Exception, place: str) -> Exception:
    """Return an error about a value as one of the same kind whose message also says where a schedule has the value.

    Args:
        error: A SettingError, ValueError or TypeError; another one gets a note, because its arguments are unknown.
        place: Such as ``in epoch 3``.
    """
    if isinstance(error, SettingError):
        rule = f"{error.rule} ({place})"
        return SettingError(error.argument, error.value, rule, error.remedy, settings=error.settings)
    if isinstance(error, TypeError | ValueError):
        kind = TypeError if isinstance(error, TypeError) else ValueError
        return kind(f"{str(error).removesuffix('.')} ({place})")
    error.add_note(place)
    return error


def schedules_in(value: Any) -> list[Schedule]:
    """Return the schedules in a value, and in the lists in it."""
    if isinstance(value, Schedule):
        return [value]
    if isinstance(value, list | tuple):
        return [schedule for item in value for schedule in schedules_in(item)]
    return []


def current_value(value: Any) -> Any:
    """Replace schedules by their values for the sample that is being made, also in lists; see `Schedule.current`."""
    if isinstance(value, Schedule):
        return value.current()
    return [*map(current_value, value)] if schedules_in(value) else value


def value_at(value: Any, epoch: int) -> Any:
    """Replace schedules by their values in an epoch, also in lists.

    Raises:
        SettingError: A schedule is drawn for every batch and has no value for an epoch.
    """
    if isinstance(value, EpochSchedule):
        return value.at(epoch)
    if isinstance(value, Schedule):
        raise SettingError(
            "choices", value.examples(), "are drawn for every batch, and this setting needs one an epoch"
        )
    return [value_at(item, epoch) for item in value] if schedules_in(value) else value
