"""Settings of samplers that may change from epoch to epoch, and exact quotas that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from lit_loader.errors import SettingError
from lit_loader.schedules import EpochSchedule, Schedule, as_schedule, located
from lit_loader.types import IndexArray

# Epochs whose values identify a schedule without a last breakpoint, such as a function. Hashing whole weights of every
# epoch would take too long, so these have fewer, and the examples.
_IDENTITY_EPOCHS: Final = range(1001)
_IDENTITY_EPOCHS_OF_ARRAYS: Final = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
# Sums that are cached besides the last one. Two loaders may be in two epochs, each with the next one prepared ahead.
_NUM_CACHED: Final = 3


def epoch_schedule(name: str, value: Any) -> Any:
    """Convert a mapping to a schedule of epochs; return anything else unchanged.

    Args:
        name: The argument's name, for the message.
        value: A setting that must be known for a whole epoch.

    Raises:
        SettingError: It is drawn for every batch, or a mapping describes no schedule.
    """
    schedule = as_schedule(value) if isinstance(value, Mapping) else value
    if isinstance(schedule, Mapping):
        example = "such as {points: {0: 0.0, 10: 1.0}} or {epochs: [0, 10], value: 0.5}"
        raise SettingError(name, dict(schedule), "is a mapping that describes no schedule", f"give one {example}")
    if isinstance(schedule, Schedule) and not isinstance(schedule, EpochSchedule):
        raise SettingError(
            name,
            {"choices": schedule.examples()},
            "is drawn for every batch, and this setting plans a whole epoch at once",
            "give a schedule of epochs, such as {points: {0: 0.0, 10: 1.0}} or {epochs: [0, 10], value: 0.5}",
        )
    return schedule


class EpochSetting:
    """A setting of a sampler or a mix: a constant, or a schedule of epochs.

    Args:
        name: The argument's name, for messages.
        value: A constant, an `EpochSchedule`, or a mapping that describes one.
        check: Takes the name and the value of one epoch, and returns the checked value.

    Attributes:
        schedule: The schedule, or None for a constant.

    Raises:
        SettingError: The value is drawn for every batch.
        TypeError, ValueError: ``check`` refuses the constant, or an example of the schedule.
    """

    def __init__(self, name: str, value: Any, check: Callable[[str, Any], Any]) -> None:
        value = epoch_schedule(name, value)
        self._name = name
        self._check = check
        self.schedule: EpochSchedule | None = value if isinstance(value, EpochSchedule) else None
        self._constant: Any = None
        if self.schedule is None:
            self._constant = check(name, value)
            return
        # Before training starts, not in the epoch of the wrong value.
        for epoch in self.schedule.example_epochs():
            self.at(epoch)

    def at(self, epoch: int) -> Any:
        """Return the checked value in an epoch.

        Raises:
            TypeError, ValueError: The schedule has a value there that ``check`` refuses.
        """
        if self.schedule is None:
            return self._constant
        try:
            value = _rounded(self.schedule.at(epoch))
        except SettingError as error:
            raise SettingError(f"{self._name}.{error.argument}", error.value, error.rule, error.remedy) from error
        try:
            return self._check(self._name, value)
        except (TypeError, ValueError) as error:
            raise located(error, f"in epoch {epoch} of the schedule {self.schedule}") from error

    @property
    def constant_from(self) -> int | None:
        """First epoch from which on the value stays the same, or None if it is unknown."""
        return 0 if self.schedule is None else self.schedule.constant_from()

    def same_epoch(self, epoch: int) -> int:
        """Return the earliest epoch that is known to have the same value as an epoch."""
        return epoch if self.constant_from is None else min(epoch, self.constant_from)

    def identity(self) -> list[Any]:
        """Return the constant, or the text of the schedule with its values in a number of epochs.

        A schedule without a last breakpoint is identified by its values in the first 1001 epochs; one of arrays, such
        as weights, only by 12 of them.
        """
        if self.schedule is None:
            return [str(self._constant) if isinstance(self._constant, Fraction) else self._constant]
        is_number = np.ndim(self.schedule.at(0)) == 0
        identity_epochs = _IDENTITY_EPOCHS if is_number else _IDENTITY_EPOCHS_OF_ARRAYS
        epochs = {*self.schedule.example_epochs(), *map(self.same_epoch, identity_epochs)}
        identity: list[Any] = ["schedule", str(self.schedule)]
        for epoch in sorted(epochs):
            try:
                value: Any = np.asarray(_rounded(self.schedule.at(epoch)), dtype=np.float64)
            # A function, such as a look-up in a list, need not be defined for epochs that training does not reach.
            except Exception as error:
                value = type(error).__name__
            identity += [epoch, value]
        return identity


def _rounded(value: Any) -> Any:
    """Return a number with 12 digits: interpolation differs between machines beyond that, and quotas must not."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


class EpochQuotas:
    """Quotas of every epoch as a function of settings, and their sums over earlier epochs.

    A sum takes one call of ``quotas_of`` for each earlier epoch up to the last breakpoint of the settings' schedules,
    and is then cached, so that the next epoch adds only its own.

    Args:
        settings: The settings.
        quotas_of: Takes their values and returns the quotas, int64 ``(n,)``.

    Raises:
        ValueError: ``quotas_of`` refuses the values of an example epoch.
    """

    def __init__(self, settings: Sequence[EpochSetting], quotas_of: Callable[..., IndexArray]) -> None:
        self._settings = settings
        self._quotas_of = quotas_of
        ends = [setting.constant_from for setting in settings]
        self._constant_from = None if None in ends else max(filter(None, ends), default=0)
        # The last quotas with the values that they belong to; values often stay the same for many epochs.
        self._last: tuple[tuple[Hashable, ...], IndexArray] | None = None
        # Pairs of an epoch and the sum of the quotas before it.
        self._sums: tuple[tuple[int, IndexArray], ...] = ((0, np.zeros_like(self.at(0))),)
        for schedule in [setting.schedule for setting in settings if setting.schedule is not None]:
            for epoch in schedule.example_epochs():
                self.at(epoch)

    def at(self, epoch: int) -> IndexArray:
        """Return the quotas of an epoch, read-only."""
        values = tuple(setting.at(epoch) for setting in self._settings)
        last = self._last
        if last is not None and last[0] == values:
            return last[1]
        quotas = self._quotas_of(*values)
        quotas.flags.writeable = False
        # One assignment, so that threads read values and quotas that belong together.
        self._last = values, quotas
        return quotas

    def before(self, epoch: int) -> IndexArray:
        """Return the sum of the quotas of all earlier epochs."""
        end = epoch if self._constant_from is None else min(epoch, self._constant_from)
        first, total = max((pair for pair in self._sums if pair[0] <= end), key=lambda pair: pair[0])
        for earlier in range(first, end):
            total = total + self.at(earlier)
        if end > first:
            # The pair of epoch 0 stays, because any sum may begin there.
            self._sums = (self._sums[0], *self._sums[1:][-_NUM_CACHED:], (end, total))
        return total if end == epoch else total + (epoch - end) * self.at(end)
