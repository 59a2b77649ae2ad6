"""Loaders that Lightning rebuilds: with a seed they get the user's samplers again, without one they stay as they are.

NOTE [Rebuilt loaders]
    Lightning rebuilds a loader to shard it (``use_distributed_sampler``, unless its sampler is a
    ``DistributedSampler``, as every `OrderSampler` is), to follow the indices of a prediction, and to stop shuffling
    for ``overfit_batches``. It calls the loader's class with other samplers, and then replays on the new loader what
    the old one has recorded in ``__pl_attrs_record``: functions and their arguments. `register_rebuild_hook` adds
    `_on_rebuilt` to the record of a loader that was given a sampler or a batch sampler. So `_on_rebuilt` is called with
    every loader that Lightning rebuilt and with the user's samplers, in every stage, also under Fabric, and Lightning
    need not be imported. The record holds samplers and never the loader, which would keep itself alive.

    With a seed the loader splits any sampler over the ranks itself (see `lit_loader.samplers.custom_ranks`), so where
    Lightning sharded one, the user's own is put back. Without a seed each rank gets exactly what it would with torch's
    loader, and there is one warning where that differs from what the sampler gives.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch.utils.data
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, Sampler

from lit_loader.samplers import OrderSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

__all__ = ["register_rebuild_hook", "replace_torch_samplers", "unwrapped"]

# The arguments that Lightning can pass to a batch sampler's class.
_BATCH_SAMPLER_PARAMETERS = {"self", "sampler", "batch_size", "drop_last"}
# Samplers whose replacement was warned of (Lightning rebuilds a loader for each stage), by id, since a sampler need not
# be hashable.
_warned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def unwrapped(batch_sampler: Any) -> Any:
    """Return the batch sampler inside Lightning's wrapper for predictions, or the argument if there is no wrapper."""
    return getattr(batch_sampler, "_batch_sampler", batch_sampler)


def is_watched(batch_sampler: Any) -> bool:
    """Whether Lightning's wrapper collects each batch's indices for a prediction.

    Then no batch may be planned before its epoch is claimed, because the collection begins anew with each epoch.
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

    For a loader with a seed. Torch's ``SequentialSampler`` and ``RandomSampler``, and its ``BatchSampler`` over one of
    them, take neither seed nor rank, and lit_loader's give the same indices. A subclass, or a ``RandomSampler`` with
    ``replacement``, ``num_samples`` or ``generator``, is returned as it is.
    """
    if type(batch_sampler) is BatchSampler:
        inner = _as_order_sampler(batch_sampler.sampler)
        if inner is not batch_sampler.sampler:
            batch_sampler = BatchSampler(inner, batch_sampler.batch_size, batch_sampler.drop_last)
    return _as_order_sampler(sampler), batch_sampler


def _as_order_sampler(sampler: Any) -> Any:
    if type(sampler) is torch.utils.data.SequentialSampler:
        return SequentialSampler(sampler.data_source)
    if _is_plain_random(sampler) and sampler.generator is None:
        return RandomSampler(sampler.data_source)
    return sampler


# -- the sampler that Lightning finds on a loader ----------------------------------------------------------


def register_rebuild_hook(loader: Any, sampler: Any, batch_sampler: Any) -> None:
    """Set the ``sampler`` attribute that Lightning looks at, and let `_on_rebuilt` correct rebuilt loaders.

    With a ``batch_sampler``, torch's loader has a ``SequentialSampler`` as its ``sampler``. Lightning therefore takes
    the loader for one that does not shuffle, and calls ``set_epoch`` on that sampler alone. This loader has the batch
    sampler's own sampler there. It has a `_ShownSampler` if there is no such sampler, if the batch sampler has
    ``set_epoch``, and always without a seed, so that Lightning does with the loader what it does with torch's.

    Args:
        loader: A loader after torch's constructor.
        sampler: As given to the loader, or None.
        batch_sampler: As given to the loader, or None.
    """
    if isinstance(loader.dataset, IterableDataset) or (sampler is None and batch_sampler is None):
        return
    own = unwrapped(batch_sampler)
    if own is None:
        _record(loader, loader.sampler, None)
        return
    sampler = shown = getattr(own, "sampler", None)
    if shown is None or hasattr(own, "set_epoch"):
        is_fixed = isinstance(own, Sequence)
        sampler = loader.sampler if is_fixed else own
        shown = (_ShownAsFixed if is_fixed else _ShownAsDistributed)(loader.dataset, own)
    is_prediction = is_watched(batch_sampler) and not hasattr(own, "set_epoch")
    if loader.seed is None and is_prediction:
        # the sampler stays that of torch's constructor, as in torch's loader that Lightning rebuilt
        _record(loader, sampler, own)
        return
    if loader.seed is None and not isinstance(sampler, OrderSampler):
        in_order = isinstance(sampler, torch.utils.data.SequentialSampler) or type(own) is not BatchSampler
        shown = (_ShownAsSequential if in_order else _ShownAsRandom)(loader.dataset, own)
    _set(loader, sampler=shown)
    if isinstance(shown, OrderSampler) and type(batch_sampler) is BatchSampler:
        _set(loader, batch_size=own.batch_size, drop_last=own.drop_last)
    _record(loader, sampler, own)


class _ShownSampler:
    """A loader's ``sampler`` attribute beside a user's batch sampler; Lightning checks the class.

    It gives the indices of the ``SequentialSampler`` that torch's loader has there, and forwards ``set_epoch``.
    """

    def __init__(self, dataset: Any, batch_sampler: Any) -> None:
        # The constructors of torch's samplers would ask for a length and a process group, which are not needed here.
        self.data_source, self._batch_sampler = dataset, batch_sampler

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)

    @property
    def epoch(self) -> Any:
        """The epoch of the batch sampler, or None if it has no such attribute."""
        return getattr(self._batch_sampler, "epoch", None)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the batch sampler, if it has ``set_epoch``."""
        if callable(set_epoch := getattr(self._batch_sampler, "set_epoch", None)):
            set_epoch(epoch)


class _ShownAsSequential(_ShownSampler, torch.utils.data.SequentialSampler):
    """For Lightning the same as torch's ``SequentialSampler``."""


class _ShownAsRandom(_ShownSampler, torch.utils.data.RandomSampler):
    """For Lightning a shuffled sampler, which ``overfit_batches`` replaces: it can rebuild torch's batch sampler."""

    replacement, generator, _num_samples = False, None, None


class _ShownAsDistributed(_ShownSampler, DistributedSampler[Any]):  # type: ignore[override] # epoch is a property
    """For Lightning a sampler that is sharded already: it would refuse a batch sampler that it cannot rebuild."""


class _ShownAsFixed(_ShownAsDistributed, torch.utils.data.SequentialSampler):  # type: ignore[override] # as above
    """For a sequence of batches, which Lightning does not shard, and which ``overfit_batches`` leaves as it is."""


def _record(loader: Any, sampler: Any, batch_sampler: Any) -> None:
    _set(loader, __pl_attrs_record=[((sampler, batch_sampler), _on_rebuilt)])


def _set(loader: Any, **attributes: Any) -> None:
    # Not by setattr: torch's loader forbids it after its constructor, and Lightning's hooks would record it.
    loader.__dict__.update(attributes)


# -- a loader that Lightning rebuilt -----------------------------------------------------------------------


def _on_rebuilt(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Correct a loader that Lightning rebuilt from one with these samplers; without a seed, warn where it was sharded.

    Raises:
        ValueError: If there is a seed, and the loader would not give what those samplers give.
    """
    if batch_sampler is not None and unwrapped(rebuilt.batch_sampler) is batch_sampler:
        return
    injected = _injected_sampler(rebuilt)
    is_new = injected is not sampler
    if is_new and isinstance(injected, DistributedSampler) and not isinstance(injected, OrderSampler):
        if rebuilt.seed is None:
            _warn_of_sharding(rebuilt, injected, sampler, batch_sampler)
        else:
            _undo_sharding(rebuilt, sampler, batch_sampler)
    elif is_watched(rebuilt.batch_sampler):
        _correct_prediction(rebuilt, sampler, batch_sampler)
    elif is_new:
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
    like = unwrapped(rebuilt.batch_sampler) if batch_sampler is None else batch_sampler
    if is_watched(rebuilt.batch_sampler):
        if type(like) is BatchSampler:
            like = BatchSampler(sampler, like.batch_size, False)  # predictions drop nothing
        _wrap_instead(rebuilt, like, sampler)
    elif batch_sampler is None:
        _batch_like(like, rebuilt, sampler)
    else:
        # as torch's constructor leaves them beside a batch sampler
        _set(rebuilt, sampler=sampler, batch_sampler=batch_sampler, batch_size=None, drop_last=False)
        _record(rebuilt, sampler, batch_sampler)


def _correct_prediction(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Give a prediction on one process the user's batches, inside of Lightning's wrapper."""
    if batch_sampler is None:
        return
    if _keeps_arguments(batch_sampler) and hasattr(batch_sampler, "sampler"):
        if rebuilt.seed is None and getattr(batch_sampler, "drop_last", False):
            # Lightning's copy drops nothing, as it should, but was made over a `_ShownSampler`.
            inner = unwrapped(rebuilt.batch_sampler)
            rebuilt.batch_sampler.sampler = inner.sampler = batch_sampler.sampler
            return
        if unwrapped(rebuilt.batch_sampler).sampler is batch_sampler.sampler:
            return
    _wrap_instead(rebuilt, batch_sampler, sampler)


def _wrap_instead(rebuilt: Any, batch_sampler: Any, sampler: Any) -> None:
    """Put another batch sampler into the wrapper in which Lightning collects the indices of a prediction."""
    if getattr(batch_sampler, "drop_last", False):
        text = (
            f"batch_sampler={_name(batch_sampler)} has drop_last=True, by which predictions would be missing, and "
            "Lightning cannot rebuild it without; make it with drop_last=False for prediction"
        )
        if rebuilt.seed is not None:
            raise ValueError(text)
        warnings.warn(text, UserWarning, stacklevel=2)
    attributes = getattr(batch_sampler, "__dict__", {})
    rebuilt.batch_sampler.__dict__.update(attributes, _batch_sampler=batch_sampler)
    if rebuilt.seed is not None or hasattr(batch_sampler, "set_epoch"):
        _set(rebuilt, sampler=sampler)


def _correct_overfitting(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Give ``overfit_batches`` the same batches in every epoch, of the indices that the sampler gives."""
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        text = (
            f"batch_sampler={_name(batch_sampler)} may go on shuffling, which overfit_batches cannot stop; leave "
            "it out of this run, and give batch_size="
        )
        if rebuilt.seed is not None:
            raise ValueError(text)
        if _is_first_warning(batch_sampler):
            warnings.warn(text, UserWarning, stacklevel=2)
        return
    fixed = rebuilt.sampler
    if isinstance(sampler, OrderSampler):
        given = sampler.expected_visits() > 0
        if not given.all():
            fixed = SubsetRandomSampler(np.flatnonzero(given), shuffle=False, num_indices=len(given))
    elif type(sampler) is torch.utils.data.SubsetRandomSampler:
        fixed = list(sampler.indices)
        fixed = fixed if rebuilt.seed is None else SubsetRandomSampler(fixed, shuffle=False)
    elif type(sampler) is BatchSampler:  # given as `sampler`, beside batch_size=None
        in_order = torch.utils.data.SequentialSampler(rebuilt.dataset)
        fixed = BatchSampler(in_order, sampler.batch_size, sampler.drop_last)
    elif isinstance(sampler, Sequence):
        fixed = sampler
    _batch_like(rebuilt.batch_sampler if batch_sampler is None else batch_sampler, rebuilt, fixed)


def _batch_like(like: Any, rebuilt: Any, sampler: Any) -> None:
    """Set a loader's sampler, with the batch size of a plain ``BatchSampler``, which Lightning loses."""
    _set(rebuilt, sampler=sampler)
    if type(like) is BatchSampler:
        batches = BatchSampler(sampler, like.batch_size, like.drop_last)
        _set(rebuilt, batch_sampler=batches, batch_size=like.batch_size, drop_last=like.drop_last)
    _record(rebuilt, sampler, None)


# -- the warning without a seed ----------------------------------------------------------------------------


def _warn_of_sharding(rebuilt: Any, injected: Any, sampler: Any, batch_sampler: Any) -> None:
    """Warn once if Lightning's sharding does not give what the user's sampler gives."""
    lost = _lost_by_sharding(rebuilt, injected, sampler, batch_sampler)
    given = sampler if batch_sampler is None else batch_sampler
    if lost is None or injected.rank != 0 or not _is_first_warning(given):
        return
    argument = "sampler" if batch_sampler is None else "batch_sampler"
    warnings.warn(
        f"{argument}={_name(given)} was replaced by Lightning's {_name(injected)}, as with torch's DataLoader: {lost}. "
        "For each rank's part of what it gives, pass seed= (then it is cut by rank), also with a sampler of "
        "lit_loader.samplers; if it gives each rank its own part by itself, pass "
        "Trainer(use_distributed_sampler=False)",
        UserWarning,
        stacklevel=2,
    )


def _is_first_warning(sampler: Any) -> bool:
    """Note that there is a warning of a sampler, and return whether it is the first one."""
    with contextlib.suppress(TypeError):  # a list, for example, has no weak references
        if _warned.get(id(sampler)) is sampler:
            return False
        _warned[id(sampler)] = sampler
    return True


def _lost_by_sharding(rebuilt: Any, injected: Any, sampler: Any, batch_sampler: Any) -> str | None:
    """Return how the ranks' indices differ from those of the user's sampler, or None if they do not."""
    if batch_sampler is not None:
        if type(batch_sampler) is not BatchSampler:
            if batch_sampler is sampler or not _keeps_arguments(batch_sampler):
                return "it was made again over the data set's indices, with those of its arguments that are visible"
        elif not is_watched(rebuilt.batch_sampler) and batch_sampler.batch_size != rebuilt.batch_size:
            return f"batch_size={batch_sampler.batch_size} became batch_size={rebuilt.batch_size}"
    in_order = type(sampler) is torch.utils.data.SequentialSampler or isinstance(sampler, Sequence)
    if in_order and injected.shuffle:
        return "its order is shuffled"
    # Lightning's wrapper around a sampler, which each rank iterates.
    wrapped = None if injected.dataset is rebuilt.dataset else getattr(injected.dataset, "_sampler", None)
    if in_order or (wrapped is None and _is_plain_random(sampler)):
        return None if len(sampler) == len(injected.dataset) else "all indices of the data set are given"
    if wrapped is sampler:
        return "each rank draws for itself and takes a part of that, so that samples are doubled and missing"
    return "what it draws is lost, the data set's indices are shared instead"


def _is_plain_random(sampler: Any) -> bool:
    """Whether a sampler is torch's ``RandomSampler`` and gives each index once."""
    if type(sampler) is not torch.utils.data.RandomSampler:
        return False
    return not sampler.replacement and sampler._num_samples in (None, len(sampler.data_source))


def _keeps_arguments(batch_sampler: Any) -> bool:
    """Whether Lightning rebuilds a batch sampler with all of its arguments."""
    if type(batch_sampler) is BatchSampler or hasattr(batch_sampler, "__pl_saved_args"):
        return True
    return set(inspect.signature(type(batch_sampler).__init__).parameters) == _BATCH_SAMPLER_PARAMETERS


def _name(thing: Any) -> str:
    return type(thing).__name__
