"""Transforms with scheduled arguments: in each epoch, or each global batch, the transform of its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import methodcaller
from typing import Any, Final

from torch import nn

from lit_loader.errors import SettingError
from lit_loader.schedules import (
    EpochRange,
    EpochSchedule,
    Schedule,
    as_schedule,
    epochs_text,
    example_epochs,
    located,
    schedules_in,
)

__all__ = ["ScheduledTransform", "current_transform", "scheduled_keywords", "scheduled_preset"]

# Threads of a loader may make samples of two epochs, and of batches with several sizes, at the same time.
_MAX_CACHED: Final = 16
_OFF: Final = object()
_current = methodcaller("current")


class ScheduledTransform(nn.Module):
    """A transform whose arguments follow schedules, or that is applied in a range of epochs only.

    For each distinct combination of values, the transform is constructed once and then reused, so a sample has the bits
    of a transform that was constructed with the values of its epoch.

    Runs in: the main process, workers and threads; needs a loader with a seed, see `lit_loader.current_epoch`.
    Determinism: the values are a function of (epoch, schedule), and for `BatchChoice` of (seed, epoch, global batch).

    Args:
        transform: With ``arguments``, a class or function that returns a transform, or a ``functools.partial`` of one
            (``_partial_: true`` in YAML). Without them, a transform.
        epochs: First epoch in which the transform is applied, and the first epoch after it (``[0, 85]``); None as the
            second entry means no end. None applies it in every epoch.
        **arguments: Keywords of ``transform``. Schedules, and mappings that `as_schedule` converts, are replaced by
            their values, also in lists. In a list, a `ScheduledTransform` is replaced by its transform of the epoch,
            and left out while it is switched off.

    Raises:
        SettingError: The arguments do not fit together, or a mapping describes no schedule.
        Exception: ``transform`` refuses values at a breakpoint of the schedules; the message, or a note of an unusual
            error, names the epoch and the values.

    Example:
        >>> from torchvision.transforms import v2
        >>> from lit_loader.transforms import ScheduledTransform
        >>> blur = ScheduledTransform(v2.GaussianBlur, kernel_size=5, sigma={"points": {0: 0.1, 10: 2.0}})
        >>> colours = ScheduledTransform(v2.ColorJitter(0.4), epochs=[0, 85])
    """

    def __init__(
        self, transform: Callable[..., Any], *, epochs: Sequence[int | None] | None = None, **arguments: Any
    ) -> None:
        super().__init__()
        _check_transform(transform, epochs, arguments)
        self.transform = transform
        self.arguments = scheduled_keywords(arguments)
        self.switch = None if epochs is None else EpochRange(epochs, value="on", otherwise="off")
        # Schedules and scheduled transforms in the arguments, with their names.
        self._parts = [part for name, value in self.arguments.items() for part in _named_parts(name, value)]
        self.built = lru_cache(maxsize=_MAX_CACHED)(self._build)
        # A wrong value must fail now, not when training reaches its epoch.
        for values, epoch in self._example_values().items():
            try:
                self.built(values)
            except Exception as error:
                if not self._parts:
                    raise
                settings = [f"{name}={value}" for (name, _), value in zip(self._parts, values, strict=True)]
                raise located(error, f"in epoch {epoch} of the schedules, with {', '.join(settings)}") from error

    def forward(self, *inputs: Any) -> Any:
        """Apply the transform of the sample's epoch and batch; return the inputs while it is switched off."""
        transform = self.current()
        if transform is None:
            return inputs if len(inputs) > 1 else inputs[0]
        return transform(*inputs)

    def current(self) -> Any:
        """Return the transform for the sample that is being made, or None while it is switched off.

        Raises:
            RuntimeError: Outside of a seeded loader, see `lit_loader.current_epoch`.
        """
        values = self.values(_current)
        return None if values is None else self.built(values)

    def examples(self) -> list[Any]:
        """Return the transforms at the breakpoints of the schedules, the first of them for the first epoch."""
        return [self.built(values) for values in self._example_values()]

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules by the names of their arguments, and as ``epochs`` the range in which it is applied."""
        schedules: dict[str, Schedule] = {} if self.switch is None else {"epochs": self.switch}
        # Without arguments, the transform may have scheduled steps.
        for name, part in self._parts or _named_parts("transform", list(_steps(self.transform))):
            if isinstance(part, ScheduledTransform):
                schedules |= {f"{name} {part.name}.{inner}": value for inner, value in part.schedules().items()}
            else:
                schedules[name] = part
        return schedules

    @property
    def name(self) -> str:
        """Name of the transform, such as ``GaussianBlur``."""
        function = self.transform.func if isinstance(self.transform, partial) else self.transform
        return str(getattr(function, "__name__", type(function).__name__))

    @property
    def when(self) -> str:
        """Epochs in which the transform is applied, such as ``in epochs 0 to 84``; empty if in all of them."""
        return "" if self.switch is None else epochs_text(self.switch.epochs)

    def __str__(self) -> str:
        fixed = self.transform.keywords if isinstance(self.transform, partial) else {}
        arguments = ", ".join(f"{name}={_text(value)}" for name, value in {**fixed, **self.arguments}.items())
        text = f"{self.name}({arguments})"
        return f"{text} {self.when}".rstrip()

    def extra_repr(self) -> str:
        """Return the transform and its schedules as text."""
        return str(self) if self.arguments else self.when

    def __getstate__(self) -> dict[str, Any]:
        # Spawned workers construct their transforms anew.
        return {name: value for name, value in self.__dict__.items() if name != "built"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.built = lru_cache(maxsize=_MAX_CACHED)(self._build)

    def values(self, read: Callable[[Schedule], Any]) -> tuple[Any, ...] | None:
        """Return the values of all parts in order, hashable, or None while the transform is switched off.

        Args:
            read: Takes a schedule and returns its value.

        Raises:
            RuntimeError, SettingError: ``read`` raises it for a schedule, which the message names.
        """
        if self.switch is not None and _named_value("epochs", self.switch, read) == "off":
            return None
        return tuple(
            part.values(read) if isinstance(part, ScheduledTransform) else _hashable(_named_value(name, part, read))
            for name, part in self._parts
        )

    def all_schedules(self) -> Iterator[Schedule]:
        """Yield the range of epochs as a schedule, and the schedules of all arguments."""
        if self.switch is not None:
            yield self.switch
        for _, part in self._parts:
            yield from part.all_schedules() if isinstance(part, ScheduledTransform) else [part]

    def _build(self, values: tuple[Any, ...]) -> Any:
        """Construct the transform of some values."""
        if not self.arguments:
            return self.transform
        remaining_values = iter(values)
        arguments = {name: _filled(value, remaining_values) for name, value in self.arguments.items()}
        return self.transform(**{name: None if value is _OFF else value for name, value in arguments.items()})

    def _example_values(self) -> dict[tuple[Any, ...], int]:
        """Return the distinct combinations of values with their first epoch, each with every choice of a batch."""
        schedules = list(self.all_schedules())
        choices = [schedule.examples() for schedule in schedules if not isinstance(schedule, EpochSchedule)]
        num_choices = max(map(len, choices), default=1)
        combinations: dict[tuple[Any, ...], int] = {}
        for epoch in example_epochs(schedules):
            for place in range(num_choices):
                values = self.values(partial(_example, epoch=epoch, place=place))
                if values is not None:
                    combinations.setdefault(values, epoch)
        return combinations


def _check_transform(transform: Any, epochs: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse a transform with arguments, a class without arguments, and a schedule without effect."""
    function = transform.func if isinstance(transform, partial) else transform
    name = getattr(function, "__name__", type(function).__name__)
    if not callable(transform):
        raise SettingError("transform", transform, "must be a transform, or with arguments a class of transforms")
    if arguments and isinstance(transform, nn.Module):
        rule = f"is a transform already, so {sorted(arguments)} cannot be its arguments"
        raise SettingError("transform", name, rule, f"give the class {name}, in YAML with _partial_: true")
    if not arguments and (isinstance(function, type) or isinstance(transform, partial)):
        remedy = f"give {name}(...), in YAML without _partial_, or scheduled arguments"
        raise SettingError("transform", name, "is not a transform yet", remedy)
    if not arguments and epochs is None:
        raise SettingError("epochs", None, "changes nothing", "give epochs such as [0, 85], or scheduled arguments")


def scheduled_keywords(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords with schedules instead of the mappings that describe them, and with lists of Python.

    Raises:
        SettingError: Such a mapping has a wrong key or value.
    """
    converted = {}
    for name, value in keywords.items():
        try:
            converted[name] = as_schedule(value)
        except SettingError as error:
            raise SettingError(f"{name}.{error.argument}", error.value, error.rule, error.remedy) from None
        # A list of OmegaConf may contain scheduled transforms.
        if isinstance(converted[name], Sequence) and not isinstance(converted[name], str | tuple):
            converted[name] = list(converted[name])
        if isinstance(converted[name], Mapping) and any(map(schedules_in, map(as_schedule, value.values()))):
            remedy = "give a function of the number that constructs the transform, as transform"
            raise SettingError(name, dict(value), "has a schedule in a mapping, where it has no effect", remedy)
    return converted


def scheduled_preset(
    preset: Callable[..., nn.Module], train: bool, keywords: Mapping[str, Any], *, only_training: Sequence[str]
) -> nn.Module:
    """Return the transform of a preset: a `ScheduledTransform` if its keywords or extra transforms are scheduled.

    In evaluation, schedules have their final values, because a test or a prediction belongs to no epoch of training,
    and validations of several epochs must be comparable. A user's extra transform that is switched off in the end is
    left out.

    Args:
        preset: A function of a module, called as ``preset(train, **keywords)`` with values instead of schedules.
        train: True for training.
        keywords: Keywords of the preset, from `scheduled_keywords`.
        only_training: Keywords without effect in evaluation.

    Raises:
        SettingError: A keyword has no final value, but an effect in evaluation.
    """
    for name, value in keywords.items():
        entries = value if isinstance(value, list) else [value]
        mappings = [dict(entry) for entry in entries if isinstance(entry, Mapping)]
        # The rules of extra transforms explain a mapping among them.
        if mappings and not name.startswith("extra_"):
            rule = "describes no schedule, which has points, epochs or choices"
            raise SettingError(name, mappings[0], rule, "write it as {points: {0: 0.5, 10: 0.0}}")
    # In either split, all values are checked.
    transform = _preset_transform(preset, train, keywords)
    if train or not isinstance(transform, ScheduledTransform):
        return transform
    final_keywords = {}
    for name, value in keywords.items():
        # A function of the epoch has no final value, and needs none if it has no effect.
        read = _first_example if name in only_training else methodcaller("final")
        final_keywords[name] = _filled(value, _part_values(name, value, read))
    return preset(train, **final_keywords)


def _preset_transform(preset: Callable[..., nn.Module], train: bool, keywords: Mapping[str, Any]) -> nn.Module:
    is_scheduled = any(_named_parts(name, value) for name, value in keywords.items())
    make = partial(preset, train)
    return ScheduledTransform(make, **keywords) if is_scheduled else make(**keywords)


def current_transform(transforms: Any) -> Any:
    """Return the transform for the sample that is being made: `ScheduledTransform.current`, or the argument."""
    return transforms.current() if isinstance(transforms, ScheduledTransform) else transforms


def _named_parts(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return the schedules and scheduled transforms in a value and its lists with names like ``shorter_sides[1]``."""
    if isinstance(value, Schedule | ScheduledTransform):
        return [(name, value)]
    items = value if isinstance(value, list | tuple) else ()
    return [part for index, item in enumerate(items) for part in _named_parts(f"{name}[{index}]", item)]


def _steps(transform: Any) -> Iterator[Any]:
    """Yield a transform, or the steps of a composition."""
    parts = transform if isinstance(transform, nn.Sequential) else getattr(transform, "transforms", None)
    if parts is None:
        yield transform
    else:
        for part in parts:
            yield from _steps(part)


def _named_value(name: str, schedule: Schedule, read: Callable[[Schedule], Any]) -> Any:
    """Return the value that ``read`` returns for a schedule; an error names the schedule's argument."""
    try:
        return read(schedule)
    except SettingError as error:
        raise SettingError(f"{name}.{error.argument}", error.value, error.rule, error.remedy) from error
    except RuntimeError as error:
        raise RuntimeError(f"{name} follows a schedule; {error}") from error


def _part_values(name: str, value: Any, read: Callable[[Schedule], Any]) -> Iterator[Any]:
    """Yield the values of the parts of a value, as `_filled` takes them."""
    for part_name, part in _named_parts(name, value):
        yield part.values(read) if isinstance(part, ScheduledTransform) else _named_value(part_name, part, read)


def _filled(value: Any, values: Iterator[Any]) -> Any:
    """Replace the parts of a value by their values, in the order of `_named_parts`."""
    if isinstance(value, Schedule):
        return next(values)
    if isinstance(value, ScheduledTransform):
        inner_values = next(values)
        return _OFF if inner_values is None else value.built(inner_values)
    if isinstance(value, list | tuple) and _named_parts("", value):
        items = [_filled(item, values) for item in value]
        return [item for item in items if item is not _OFF]
    return value


def _example(schedule: Schedule, *, epoch: int, place: int) -> Any:
    """Return the value of a schedule in an epoch, or its choice number ``place``."""
    if isinstance(schedule, EpochSchedule):
        return schedule.at(epoch)
    examples = schedule.examples()
    return examples[place % len(examples)]


def _first_example(schedule: Schedule) -> Any:
    return schedule.examples()[0]


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return str(value) if isinstance(value, Schedule | ScheduledTransform | float | int) else repr(value)
