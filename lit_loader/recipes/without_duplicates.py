"""Metrics without duplicates: exact on any number of ranks and for any length of the set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.wrappers.abstract import WrapperMetric

__all__ = ["WithoutDuplicates"]

M = TypeVar("M", bound=nn.Module)


class WithoutDuplicates(WrapperMetric, Generic[M]):
    """Wrap a metric so that padding duplicates in the last distributed batch are ignored.

    >>> import torch
    >>> from torchmetrics.classification import MulticlassAccuracy
    >>> from lit_loader.recipes import WithoutDuplicates
    >>> metric = WithoutDuplicates(MulticlassAccuracy(num_classes=2))
    >>> metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]), is_duplicate=torch.tensor([False, True]))
    >>> metric.compute()
    tensor(1.)

    It is a metric itself, so that ``self.log("val/accuracy", metric)`` works. For a mean over samples, update
    ``WithoutDuplicates(MeanMetric())`` with one loss per sample.

    Args:
        metric: A metric or collection of torchmetrics, or a module with ``update`` and ``reset``.

    Attributes:
        metric: The wrapped metric.

    Raises:
        TypeError: If ``metric`` is not a metric.
    """

    def __init__(self, metric: M) -> None:
        super().__init__()
        if not (isinstance(metric, nn.Module) and hasattr(metric, "update") and hasattr(metric, "reset")):
            raise TypeError(f"metric={metric!r} is not a metric; give one of torchmetrics, such as MeanMetric()")
        self.metric: M = metric

    def update(self, *args: Any, is_duplicate: Tensor | Sequence[bool], **kwargs: Any) -> None:
        """Update the metric with the samples of a batch that are not duplicates.

        Args:
            *args: Arguments of the metric's own ``update``: tensors with one row per sample, or lists with one entry
                per sample. Numbers, strings and None are passed on unchanged.
            is_duplicate: bool ``(B,)``, such as ``batch_duplicates(batch)``.
            **kwargs: Keyword arguments of the metric's own ``update``.

        Raises:
            TypeError: If a value is of another type, or lists of dicts are mixed with tensors.
            ValueError: If a value has another number of samples.
        """
        # Read once: as a list, no later step waits for the device.
        marks = torch.as_tensor(is_duplicate).tolist()
        values = (*args, *kwargs.values())
        for value in values:
            _check(value, marks)
        has_dicts = any(map(_is_dict_list, values))
        # torchmetrics gathers a list state element by element, so ranks whose lists differ in length deadlock. If no
        # row would remain, the metric is therefore updated with the batch and the update is undone: its lists then
        # have the same length and dtypes as on other ranks, but no rows.
        only_duplicates = all(marks) and not has_dicts
        if any(marks) and not only_duplicates:
            neutralize = _empty_duplicates if has_dicts else _drop_rows
            args = tuple(neutralize(value, marks) for value in args)
            kwargs = {name: neutralize(value, marks) for name, value in kwargs.items()}
        saved_states = _copy_states(self.metric) if only_duplicates else []
        cast(Any, self.metric).update(*args, **kwargs)
        _undo_update(saved_states)

    def compute(self) -> Any:
        """Return the value of everything collected since the last reset, over all ranks."""
        return cast(Any, self.metric).compute()

    def reset(self) -> None:
        """Clear the collected data."""
        # The wrapper has no states, but counts its updates, and torchmetrics warns of `compute` without one.
        super().reset()
        cast(Any, self.metric).reset()


def _is_per_sample(value: Any) -> bool:
    return isinstance(value, Tensor | list | tuple)


def _is_dict_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value)


def _check(value: Any, marks: Sequence[bool]) -> None:
    # Settings of a metric's `update`, such as `real=True` of FrechetInceptionDistance.
    if value is None or isinstance(value, bool | int | float | str):
        return
    if not _is_per_sample(value) or (isinstance(value, Tensor) and value.ndim == 0):
        kind = "0-d tensor" if isinstance(value, Tensor) else type(value).__name__
        rule = "expected a tensor or a list with one entry per sample"
        raise TypeError(f'{rule}, got a {kind}; give values of samples, such as a loss with reduction="none"')
    if len(value) != len(marks):
        raise ValueError(f"an argument has {len(value)} samples and is_duplicate {len(marks)}; give one entry for each")


def _drop_rows(value: Any, marks: Sequence[bool]) -> Any:
    rows = [row for row, mark in enumerate(marks) if not mark]
    if isinstance(value, Tensor):
        return value[rows]
    return [value[row] for row in rows] if _is_per_sample(value) else value


def _empty_duplicates(value: Any, marks: Sequence[bool]) -> Any:
    """Return a list of dicts in which duplicates have no objects."""
    # Neutral instead of missing, so that the lists of all ranks have the same length: no score of boxes counts an image
    # without objects and without detections.
    if not _is_per_sample(value):
        return value
    if not _is_dict_list(value):
        kind = type(value).__name__
        raise TypeError(f"got a {kind} next to a list of dicts; give one dict per sample in every argument")
    return [
        {name: field[:0] if isinstance(field, Tensor) and field.ndim else field for name, field in entry.items()}
        if mark
        else entry
        for entry, mark in zip(value, marks, strict=True)
    ]


def _copy_states(metric: nn.Module) -> list[tuple[Metric, dict[str, Any]]]:
    """Copy the states of a metric and of the metrics inside it, for `_undo_update`."""
    return [
        # Lists are appended to in place, sums are replaced: a shallow copy of a list, a clone of a tensor.
        (part, {name: list(s) if isinstance(s, list) else s.clone() for name, s in part.metric_state.items()})
        for part in metric.modules()
        if isinstance(part, Metric)
    ]


def _undo_update(saved_states: list[tuple[Metric, dict[str, Any]]]) -> None:
    """Restore states, except that an entry which was added to a list stays there without rows."""
    for metric, states in saved_states:
        for name, state in states.items():
            if isinstance(state, list):
                new_entries = getattr(metric, name)[len(state) :]
                # A 0-d entry, such as one loss a batch, is gathered as a row as well.
                state += [(e if e.ndim else e[None])[:0] if isinstance(e, Tensor) else e for e in new_entries]
            setattr(metric, name, state)
