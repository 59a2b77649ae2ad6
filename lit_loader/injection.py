"""What Lightning makes of a loader: it rebuilds some with samplers of its own; the outcome is put right or refused.

NOTE [Rebuilt loaders]
    Lightning rebuilds a loader to shard it (``use_distributed_sampler``, unless its sampler is a
    ``DistributedSampler``, as ours are), to follow the indices of a prediction, and to stop shuffling for
    ``overfit_batches``. It calls the loader's class with other samplers, and then replays on the new loader what the
    old one has on record in ``__pl_attrs_record``: functions and their arguments. A loader that was given a sampler
    or a batch sampler has an entry of ours there. So `_settle` sees every loader that Lightning rebuilt, beside what
    the user gave, in every stage, under Fabric too, and nothing of Lightning is imported. An entry holds samplers and
    never the loader, which would keep itself alive.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.utils.data
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset

from lit_loader import samplers
from lit_loader.samplers import OrderSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

__all__ = ["settle_rebuilding", "taken_as_ours", "unwrapped"]

_RECORD = "__pl_attrs_record"
# the arguments that Lightning can hand to a batch sampler's class
_KEPT = {"self", "sampler", "batch_size", "drop_last"}


def taken_as_ours(sampler: Any, batch_sampler: Any) -> tuple[Any, Any]:
    """Return a sampler and a batch sampler, of which one is None, with ours in the place of torch's plain ones.

    For a loader with a seed. Torch's ``SequentialSampler`` and ``RandomSampler``, and its ``BatchSampler`` over one of
    them, know neither seed nor rank, and ours give the same indices. A subclass, or a ``RandomSampler`` with
    ``replacement``, ``num_samples`` or ``generator``, is returned as it is.
    """
    if type(batch_sampler) is BatchSampler:
        ours = _ours(batch_sampler.sampler)
        if ours is not batch_sampler.sampler:
            return sampler, BatchSampler(ours, batch_sampler.batch_size, batch_sampler.drop_last)
    return _ours(sampler), batch_sampler


def _ours(sampler: Any) -> Any:
    if type(sampler) is torch.utils.data.SequentialSampler:
        return SequentialSampler(sampler.data_source)
    if _is_plain_random(sampler) and sampler.generator is None:
        return RandomSampler(sampler.data_source)
    return sampler


def settle_rebuilding(loader: Any, sampler: Any, batch_sampler: Any) -> None:
    """Let Lightning see what gives a loader's order, and see to it that what it rebuilds is right.

    Beside any ``batch_sampler`` torch's loader shows a ``SequentialSampler`` as its ``sampler``, by which Lightning
    takes it for one in order, and names the epochs to nobody; ours shows the batch sampler's own, or, if it has
    none or wants to know epochs, the batch sampler itself.

    Args:
        loader: A loader that torch's constructor is done with.
        sampler: As given to it, or None.
        batch_sampler: Likewise.
    """
    if isinstance(loader.dataset, IterableDataset) or (sampler is None and batch_sampler is None):
        return
    own = unwrapped(batch_sampler)
    if own is not None:
        shown = getattr(own, "sampler", None)
        if shown is None or hasattr(own, "set_epoch"):
            shown = loader.sampler if isinstance(own, Sequence) else own
        _set(loader, sampler=shown)
        if isinstance(loader.sampler, OrderSampler) and type(batch_sampler) is BatchSampler:
            _set(loader, batch_size=own.batch_size, drop_last=own.drop_last)
    _record(loader, own)


def unwrapped(batch_sampler: Any) -> Any:
    """Look through the wrapper that Lightning puts around the batch sampler of a prediction."""
    return getattr(batch_sampler, "_batch_sampler", batch_sampler)


def _record(loader: Any, batch_sampler: Any) -> None:
    object.__setattr__(loader, _RECORD, [((loader.sampler, batch_sampler), _settle)])


def _set(loader: Any, **attributes: Any) -> None:
    loader.__dict__.update(attributes)  # torch's loader forbids it once it is made


# -- a loader that Lightning rebuilt ------------------------------------------------------------------------


def _settle(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Put right, or refuse, a loader that Lightning made of one with these samplers.

    Raises:
        ValueError: If it would not give what those samplers give; their class and the remedy are named.
    """
    if batch_sampler is not None:
        if unwrapped(rebuilt.batch_sampler) is batch_sampler:
            return
        if getattr(batch_sampler, "sampler", None) is None:
            raise ValueError(
                f"batch_sampler={_name(batch_sampler)} would be rebuilt by Lightning over another sampler than its "
                f"own, which it does not show; give it an attribute `sampler`, or {_BY_ITSELF}"
            )
    now = getattr(unwrapped(rebuilt.batch_sampler), "sampler", rebuilt.sampler)
    if now is not sampler and isinstance(now, DistributedSampler) and not isinstance(now, OrderSampler):
        _settle_sharded(rebuilt, now, sampler, batch_sampler)
    elif unwrapped(rebuilt.batch_sampler) is not rebuilt.batch_sampler:
        _settle_prediction(rebuilt, sampler, batch_sampler)
    elif now is not sampler:
        _settle_unshuffled(rebuilt, sampler, batch_sampler)


def _settle_sharded(rebuilt: Any, theirs: Any, sampler: Any, batch_sampler: Any) -> None:
    """Settle ``use_distributed_sampler``: each rank its part of the same indices."""
    in_order = type(sampler) is torch.utils.data.SequentialSampler or isinstance(sampler, Sequence)
    if theirs.dataset is rebuilt.dataset:
        right = (in_order or _is_plain_random(sampler)) and len(sampler) == len(rebuilt.dataset)
    else:  # each rank iterates the sampler itself, and takes its part of what it drew
        right = in_order
    if not right:
        inside = (
            ""
            if batch_sampler is None or batch_sampler is sampler
            else f", inside of batch_sampler={_name(batch_sampler)},"
        )
        raise ValueError(
            f"sampler={_name(sampler)}{inside} would be replaced by Lightning's {_name(theirs)}, and the ranks would "
            f"not get what it gives; use {_instead_of(sampler)} and seed=, or {_BY_ITSELF}"
        )
    if batch_sampler is not None and not _keeps_arguments(batch_sampler):
        raise ValueError(
            f"batch_sampler={_name(batch_sampler)} would be rebuilt by Lightning without its further arguments; make "
            f"it in a *_dataloader hook, where Lightning takes them down, or {_BY_ITSELF}"
        )
    if in_order:
        theirs.shuffle = False  # Lightning shuffles whatever trains
    _cut(rebuilt, theirs, batch_sampler)


def _settle_prediction(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Settle a prediction that is not sharded: the same batches, with Lightning's wrapper around them."""
    if batch_sampler is None:
        return
    if _keeps_arguments(batch_sampler) and rebuilt.sampler is batch_sampler.sampler:
        return
    if getattr(batch_sampler, "drop_last", False):
        raise ValueError(
            f"batch_sampler={_name(batch_sampler)} has drop_last=True, by which predictions would be missing, and "
            "Lightning cannot rebuild it without; make it with drop_last=False for prediction"
        )
    rebuilt.batch_sampler.__dict__.update(vars(batch_sampler), _batch_sampler=batch_sampler)
    _set(rebuilt, sampler=sampler)


def _settle_unshuffled(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Settle ``overfit_batches``: the same batches in every epoch, of what the sampler would give."""
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        raise ValueError(
            f"batch_sampler={_name(batch_sampler)} may go on shuffling, which overfit_batches cannot stop; leave "
            "it out of this run, and give batch_size="
        )
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
    _cut(rebuilt, fixed, batch_sampler)


def _cut(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Cut a sampler as the loader was cut: Lightning forgets how large a plain ``BatchSampler``'s batches are."""
    _set(rebuilt, sampler=sampler)
    like = rebuilt.batch_sampler if batch_sampler is None else batch_sampler
    if type(like) is BatchSampler and unwrapped(rebuilt.batch_sampler) is rebuilt.batch_sampler:
        size, drop_last = like.batch_size, like.drop_last
        batches = BatchSampler(sampler, size, drop_last)
        _set(rebuilt, batch_sampler=batches, batch_size=size, drop_last=drop_last)
        batch_sampler = None
    _record(rebuilt, None if batch_sampler is None else unwrapped(rebuilt.batch_sampler))


# -- samplers ---------------------------------------------------------------------------------------------

_BY_ITSELF = "give Trainer(use_distributed_sampler=False) if it gives each rank its own part by itself"


def _is_plain_random(sampler: Any) -> bool:
    if type(sampler) is not torch.utils.data.RandomSampler:
        return False
    return not sampler.replacement and sampler._num_samples in (None, len(sampler.data_source))


def _keeps_arguments(batch_sampler: Any) -> bool:
    """Whether Lightning rebuilds a batch sampler with all of its arguments."""
    if type(batch_sampler) is BatchSampler or hasattr(batch_sampler, "__pl_saved_args"):
        return True
    return set(inspect.signature(type(batch_sampler).__init__).parameters) == _KEPT


def _instead_of(sampler: Any) -> str:
    """Name what does the same on several ranks."""
    kind, name = type(sampler), _name(sampler)
    if kind is torch.utils.data.RandomSampler:
        name = "RandomSampler" if _is_plain_random(sampler) else "WeightedRandomSampler"
    if kind.__module__.startswith("torch.") and hasattr(samplers, name):
        return f"lit_loader.samplers.{name}"
    return "a sampler of lit_loader.samplers (or a subclass of its OrderSampler)"


def _name(thing: Any) -> str:
    return type(thing).__name__
