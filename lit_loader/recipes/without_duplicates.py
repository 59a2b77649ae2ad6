"""Metrics without duplicates: exact on any number of ranks, whatever the length of the set.

NOTE [Neutral, not missing]
    torchmetrics gathers a state that is a list element by element, so ranks whose lists differ in length wait for each
    other for ever. A list of dicts, as detection metrics take and keep it, therefore stays as long as it was: a
    duplicate becomes an image in which there is nothing and nothing was found, which no score of boxes counts. Of
    tensors the rows are dropped; where none is left, the metric sees the batch and forgets it, so that its lists are as
    long as on other ranks and of the same dtypes, without a row.
"""

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
    """A metric that samples do not count twice in, which only fill up the last batches of several ranks.

    >>> import torch
    >>> from torchmetrics.classification import MulticlassAccuracy
    >>> from lit_loader.recipes import WithoutDuplicates
    >>> metric = WithoutDuplicates(MulticlassAccuracy(num_classes=2))
    >>> metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]), is_duplicate=torch.tensor([False, True]))
    >>> metric.compute()
    tensor(1.)

    It is a metric itself, so that ``self.log("val/accuracy", metric)`` works. A mean over samples is one too: give
    ``WithoutDuplicates(MeanMetric())`` the losses of the samples, one each.

    Args:
        metric: Any metric or collection of torchmetrics, or a module with ``update`` and ``reset`` alike.

    Attributes:
        metric: That metric.

    Raises:
        TypeError: If it is none.
    """

    def __init__(self, metric: M) -> None:
        super().__init__()
        if not (isinstance(metric, nn.Module) and hasattr(metric, "update") and hasattr(metric, "reset")):
            raise TypeError(
                f"metric={metric!r} is not a metric; give one of torchmetrics, as MulticlassAccuracy(num_classes=3)"
            )
        self.metric: M = metric

    def update(self, *args: Any, is_duplicate: Tensor | Sequence[bool], **kwargs: Any) -> None:
        """Collect the samples of a batch that are no duplicates.

        Args:
            *args: What the metric's own ``update`` takes: tensors with one row a sample and lists with one entry a
                sample. Numbers, strings and None are passed on as they are.
            is_duplicate: bool ``(B,)``, as ``batch_duplicates(batch)`` gives it.
            **kwargs: The same by name.

        Raises:
            TypeError: If a value is of another type, or dicts and rows come together.
            ValueError: If a value has another number of samples.
        """
        marks = torch.as_tensor(is_duplicate).tolist()
        values = (*args, *kwargs.values())
        for value in values:
            _check(value, marks)
        of_dicts = any(map(_is_of_dicts, values))
        if any(marks) and (of_dicts or not all(marks)):
            change = _emptied if of_dicts else _without_rows
            args = tuple(change(value, marks) for value in args)
            kwargs = {name: change(value, marks) for name, value in kwargs.items()}
        before = [] if of_dicts or not all(marks) else _states(self.metric)
        cast(Any, self.metric).update(*args, **kwargs)
        _forget(before)

    def compute(self) -> Any:
        """Return the value of everything collected since the last reset, over all ranks."""
        return cast(Any, self.metric).compute()

    def reset(self) -> None:
        """Forget what was collected."""
        super().reset()
        cast(Any, self.metric).reset()


def _is_per_sample(value: Any) -> bool:
    return isinstance(value, Tensor | list | tuple)


def _is_of_dicts(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value)


def _check(value: Any, marks: Sequence[bool]) -> None:
    if value is None or isinstance(value, bool | int | float | str):
        return
    if not _is_per_sample(value) or (isinstance(value, Tensor) and value.ndim == 0):
        found = "0-d tensor" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"expected a tensor with one row a sample, or a list with one entry a sample, got a {found}; give the "
            'values of the samples, such as a loss with reduction="none"'
        )
    if len(value) != len(marks):
        raise ValueError(
            f"an argument has {len(value)} samples and is_duplicate {len(marks)}; give one row, or entry, for each"
        )


def _without_rows(value: Any, marks: Sequence[bool]) -> Any:
    rows = [row for row, mark in enumerate(marks) if not mark]
    if isinstance(value, Tensor):
        return value[rows]
    return [value[row] for row in rows] if _is_per_sample(value) else value


def _emptied(value: Any, marks: Sequence[bool]) -> Any:
    """Return a list of dicts, each of a duplicate without objects."""
    if not _is_per_sample(value):
        return value
    if not _is_of_dicts(value):
        raise TypeError(
            f"a {type(value).__name__} without dicts comes with a list of dicts; the rule is one dict a sample in all."
        )
    return [
        {name: held[:0] if isinstance(held, Tensor) and held.ndim else held for name, held in one.items()}
        if mark
        else one
        for one, mark in zip(value, marks, strict=True)
    ]


def _states(metric: nn.Module) -> list[tuple[Metric, dict[str, Any]]]:
    """Return the states of a metric and of those inside of it, for `_forget`."""
    return [
        (one, {name: list(s) if isinstance(s, list) else s.clone() for name, s in one.metric_state.items()})
        for one in metric.modules()
        if isinstance(one, Metric)
    ]


def _forget(before: list[tuple[Metric, dict[str, Any]]]) -> None:
    """Take an update back, but for an entry without rows wherever it added one to a list."""
    for metric, states in before:
        for name, state in states.items():
            if isinstance(state, list):
                state += [_no_rows(entry) for entry in getattr(metric, name)[len(state) :]]
            setattr(metric, name, state)


def _no_rows(entry: Any) -> Any:
    if not isinstance(entry, Tensor):
        return entry
    return entry[:0] if entry.ndim else torch.zeros(0, dtype=entry.dtype, device=entry.device)
