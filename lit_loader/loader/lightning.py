"""Loaders with a seed under Lightning: a loader that Lightning rebuilds gets the user's samplers back.

NOTE [Rebuilt loaders]
    Lightning rebuilds a loader to shard it (``use_distributed_sampler``, unless its sampler is a
    ``DistributedSampler``, as every `OrderSampler` is), to follow the indices of a prediction, and to stop shuffling
    for ``overfit_batches``. It calls the loader's class with other samplers and then replays, on the new loader, the
    functions that the old loader has recorded in ``__pl_attrs_record``. `register_rebuild_hook` records `_on_rebuilt`,
    so Lightning calls it for every rebuilt loader, in every stage and under Fabric, and this package need not import
    Lightning.

    A loader with a seed splits any sampler over the ranks itself (see `lit_loader.samplers.custom_ranks`), so
    `_on_rebuilt` puts back a sampler that Lightning sharded. A loader without a seed records nothing: Lightning treats
    it as it treats torch's.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch.utils.data
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, Sampler

from lit_loader.samplers import OrderSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

__all__ = ["register_rebuild_hook", "replace_torch_samplers", "unwrapped"]

# The arguments that Lightning can pass to a batch sampler's class.
_BATCH_SAMPLER_PARAMETERS = {"self", "sampler", "batch_size", "drop_last"}


def unwrapped(batch_sampler: Any) -> Any:
    """Return the batch sampler inside Lightning's wrapper for predictions, or the argument if it is not wrapped."""
    return getattr(batch_sampler, "_batch_sampler", batch_sampler)


def is_watched(batch_sampler: Any) -> bool:
    """Return True if Lightning's wrapper collects each batch's indices for a prediction.

    Then no batch may be planned before its epoch is claimed, because the wrapper starts a new list in each epoch.
    """
    return unwrapped(batch_sampler) is not batch_sampler


def begin_seen_indices(batch_sampler: Any) -> list[list[Any]] | None:
    """Return a new list, in which Lightning's wrapper finds each batch's indices, or None without a wrapper."""
    if is_watched(batch_sampler):
        batch_sampler.seen_batch_indices = []
    return seen_indices(batch_sampler)


def seen_indices(batch_sampler: Any) -> list[list[Any]] | None:
    """Return the list in which Lightning's wrapper finds each batch's indices, or None without a wrapper."""
    return batch_sampler.seen_batch_indices if is_watched(batch_sampler) else None


def replace_torch_samplers(sampler: Any, batch_sampler: Any) -> tuple[Any, Any]:
    """Return a sampler and a batch sampler (one of them None) with torch's plain samplers replaced by lit_loader's.

    Torch's ``SequentialSampler`` and ``RandomSampler``, and its ``BatchSampler`` over one of them, take neither seed
    nor rank, and lit_loader's give the same indices. A subclass, or a ``RandomSampler`` with ``replacement``,
    ``num_samples`` or ``generator``, is returned unchanged.
    """
    if type(batch_sampler) is BatchSampler:
        inner = _as_order_sampler(batch_sampler.sampler)
        if inner is not batch_sampler.sampler:
            batch_sampler = BatchSampler(inner, batch_sampler.batch_size, batch_sampler.drop_last)
    return _as_order_sampler(sampler), batch_sampler


def _as_order_sampler(sampler: Any) -> Any:
    if type(sampler) is torch.utils.data.SequentialSampler:
        return SequentialSampler(sampler.data_source)
    if type(sampler) is torch.utils.data.RandomSampler:
        gives_each_once = not sampler.replacement and sampler._num_samples in (None, len(sampler.data_source))
        if gives_each_once and sampler.generator is None:
            return RandomSampler(sampler.data_source)
    return sampler


# -- the sampler that Lightning finds on a loader ----------------------------------------------------------


def register_rebuild_hook(loader: Any, sampler: Any, batch_sampler: Any) -> None:
    """Set the ``sampler`` attribute that Lightning looks at, and let `_on_rebuilt` correct rebuilt loaders.

    With a ``batch_sampler``, torch's loader has a ``SequentialSampler`` as its ``sampler``. Lightning therefore takes
    the loader for one that does not shuffle, and calls ``set_epoch`` on that sampler alone. This loader has the batch
    sampler's own sampler there, or an `_UnshardedSampler` if the batch sampler has none or has its own ``set_epoch``.

    Args:
        loader: A loader with a seed, after torch's constructor.
        sampler: The loader's argument, or None.
        batch_sampler: The loader's argument, or None.
    """
    if isinstance(loader.dataset, IterableDataset) or (sampler is None and batch_sampler is None):
        return
    batches = unwrapped(batch_sampler)
    if batches is None:
        _record(loader, loader.sampler, None)
        return
    sampler = visible_sampler = getattr(batches, "sampler", None)
    if sampler is None or hasattr(batches, "set_epoch"):
        is_fixed = isinstance(batches, Sequence)
        sampler = loader.sampler if is_fixed else batches
        visible_sampler = (_UnshardedSequence if is_fixed else _UnshardedSampler)(loader.dataset, batches)
    _set(loader, sampler=visible_sampler)
    if isinstance(visible_sampler, OrderSampler) and type(batch_sampler) is BatchSampler:
        _set(loader, batch_size=batches.batch_size, drop_last=batches.drop_last)
    _record(loader, sampler, batches)


class _UnshardedSampler(DistributedSampler[Any]):
    """A ``sampler`` attribute that keeps Lightning from sharding a batch sampler, which it may not be able to rebuild.

    Lightning leaves a ``DistributedSampler`` alone and calls its ``set_epoch``, which is forwarded. The indices are the
    same as from the ``SequentialSampler`` that torch's loader has next to a batch sampler.
    """

    def __init__(self, dataset: Any, batch_sampler: Any) -> None:
        # Torch's constructor would ask for a process group.
        self.data_source = dataset
        self._batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)

    @property
    def epoch(self) -> Any:  # type: ignore[override] # an attribute in torch
        """The epoch of the batch sampler, or None if it has no such attribute."""
        return getattr(self._batch_sampler, "epoch", None)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the batch sampler, if it has ``set_epoch``."""
        if callable(set_epoch := getattr(self._batch_sampler, "set_epoch", None)):
            set_epoch(epoch)


class _UnshardedSequence(_UnshardedSampler, torch.utils.data.SequentialSampler):
    """The same for a list of batches; its class also keeps ``overfit_batches`` from replacing the list."""


def _record(loader: Any, sampler: Any, batch_sampler: Any) -> None:
    # The record holds samplers and never the loader, which would keep itself alive.
    _set(loader, __pl_attrs_record=[((sampler, batch_sampler), _on_rebuilt)])


def _set(loader: Any, **attributes: Any) -> None:
    # Not by setattr: torch's loader forbids it after its constructor, and Lightning's hooks would record it.
    loader.__dict__.update(attributes)


# -- a loader that Lightning rebuilt -----------------------------------------------------------------------


def _on_rebuilt(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Correct a loader that Lightning rebuilt from one with these samplers.

    Raises:
        ValueError: If the loader would not give what those samplers give.
    """
    if batch_sampler is not None and unwrapped(rebuilt.batch_sampler) is batch_sampler:
        return
    injected = _injected_sampler(rebuilt)
    is_replaced = injected is not sampler
    if is_replaced and isinstance(injected, DistributedSampler) and not isinstance(injected, OrderSampler):
        _undo_sharding(rebuilt, sampler, batch_sampler)
    elif is_watched(rebuilt.batch_sampler):
        _correct_prediction(rebuilt, sampler, batch_sampler)
    elif is_replaced:
        _correct_overfitting(rebuilt, sampler, batch_sampler)


def _injected_sampler(rebuilt: Any) -> Any:
    """Return the sampler that Lightning put into a loader, or into an attribute of its batch sampler."""
    batches = unwrapped(rebuilt.batch_sampler)
    if (inner := getattr(batches, "sampler", None)) is not None:
        return inner
    attributes = getattr(batches, "__dict__", {}).values()
    return next((value for value in attributes if isinstance(value, Sampler)), rebuilt.sampler)


def _undo_sharding(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Put the user's own sampler back: with a seed the loader splits it over the ranks itself."""
    template = unwrapped(rebuilt.batch_sampler) if batch_sampler is None else batch_sampler
    if is_watched(rebuilt.batch_sampler):
        if type(template) is BatchSampler:
            # Predictions drop nothing.
            template = BatchSampler(sampler, template.batch_size, False)
        _wrap_instead(rebuilt, template, sampler)
    elif batch_sampler is None:
        _set_samplers(rebuilt, sampler, template)
    else:
        # as torch's constructor sets them next to a batch sampler
        _set(rebuilt, sampler=sampler, batch_sampler=batch_sampler, batch_size=None, drop_last=False)
        _record(rebuilt, sampler, batch_sampler)


def _correct_prediction(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Give a prediction on one process the user's batches, inside of Lightning's wrapper."""
    if batch_sampler is None:
        return
    inner = getattr(batch_sampler, "sampler", None)
    is_complete = inner is not None and _keeps_arguments(batch_sampler)
    if not is_complete or unwrapped(rebuilt.batch_sampler).sampler is not inner:
        _wrap_instead(rebuilt, batch_sampler, sampler)


def _keeps_arguments(batch_sampler: Any) -> bool:
    """Return True if Lightning rebuilds a batch sampler with all of its arguments."""
    if type(batch_sampler) is BatchSampler or hasattr(batch_sampler, "__pl_saved_args"):
        return True
    return set(inspect.signature(type(batch_sampler).__init__).parameters) == _BATCH_SAMPLER_PARAMETERS


def _wrap_instead(rebuilt: Any, batch_sampler: Any, sampler: Any) -> None:
    """Put another batch sampler into the wrapper in which Lightning collects the indices of a prediction."""
    if getattr(batch_sampler, "drop_last", False):
        raise ValueError(
            f"batch_sampler={type(batch_sampler).__name__} has drop_last=True, so predictions would be missing, and "
            "Lightning cannot rebuild it without; pass one with drop_last=False for prediction"
        )
    attributes = getattr(batch_sampler, "__dict__", {})
    rebuilt.batch_sampler.__dict__.update(attributes, _batch_sampler=batch_sampler)
    _set(rebuilt, sampler=sampler)


def _correct_overfitting(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Give ``overfit_batches`` the same batches in every epoch, of the indices that the sampler gives."""
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        raise ValueError(
            f"batch_sampler={type(batch_sampler).__name__} may continue to shuffle, which overfit_batches cannot "
            "stop; leave it out of this run, and pass batch_size="
        )
    fixed = rebuilt.sampler
    if isinstance(sampler, OrderSampler):
        is_used = sampler.expected_visits() > 0
        if not is_used.all():
            fixed = SubsetRandomSampler(np.flatnonzero(is_used), shuffle=False, num_indices=len(is_used))
    elif type(sampler) is torch.utils.data.SubsetRandomSampler:
        fixed = SubsetRandomSampler(list(sampler.indices), shuffle=False)
    elif type(sampler) is BatchSampler:  # passed as `sampler`, with batch_size=None
        in_order = torch.utils.data.SequentialSampler(rebuilt.dataset)
        fixed = BatchSampler(in_order, sampler.batch_size, sampler.drop_last)
    elif isinstance(sampler, Sequence):
        fixed = sampler
    _set_samplers(rebuilt, fixed, rebuilt.batch_sampler if batch_sampler is None else batch_sampler)


def _set_samplers(rebuilt: Any, sampler: Any, template: Any) -> None:
    """Set a loader's sampler, and the batch size of a plain ``BatchSampler``, which Lightning loses."""
    _set(rebuilt, sampler=sampler)
    if type(template) is BatchSampler:
        batches = BatchSampler(sampler, template.batch_size, template.drop_last)
        _set(rebuilt, batch_sampler=batches, batch_size=template.batch_size, drop_last=template.drop_last)
    _record(rebuilt, sampler, None)
