"""What Lightning makes of a loader: with a seed the user's samplers are put back, without one its outcome is left.

NOTE [Rebuilt loaders]
    Lightning rebuilds a loader to shard it (``use_distributed_sampler``, unless its sampler is a
    ``DistributedSampler``, as ours are), to follow the indices of a prediction, and to stop shuffling for
    ``overfit_batches``. It calls the loader's class with other samplers, and then replays on the new loader what the
    old one has on record in ``__pl_attrs_record``: functions and their arguments. A loader that was given a sampler
    or a batch sampler has an entry of ours there. So `_settle` sees every loader that Lightning rebuilt, beside what
    the user gave, in every stage, under Fabric too, and nothing of Lightning is imported. An entry holds samplers and
    never the loader, which would keep itself alive.

    With a seed the loader cuts any sampler by rank itself (see `lit_loader.global_batches`), so where Lightning sharded
    one, the user's own is put back. Without a seed each rank gets exactly what it would with torch's loader, and one
    warning says so where that is not what the sampler gives.
"""

from __future__ import annotations

import inspect
import sys
import warnings
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch.utils.data
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, Sampler

from lit_loader import samplers
from lit_loader.samplers import OrderSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

__all__ = ["is_called_by_lightning", "settle_rebuilding", "taken_as_ours", "unwrapped"]

_RECORD = "__pl_attrs_record"
# the arguments that Lightning can hand to a batch sampler's class
_KEPT = {"self", "sampler", "batch_size", "drop_last"}


def is_called_by_lightning() -> bool:
    """Whether Lightning's code, and not the user's, called into this package.

    Lightning loads a loader's state by itself; nothing else tells a loader in whose loop it is.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "lit_loader":
        frame = frame.f_back
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("lightning", "pytorch_lightning")


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
    takes it for one in order, and names the epochs to nobody. Ours shows the batch sampler's own, or a `_Shown` if it
    has none or wants to know epochs, and always without a seed, so that Lightning makes of it what it makes of torch's.

    Args:
        loader: A loader that torch's constructor is done with.
        sampler: As given to it, or None.
        batch_sampler: Likewise.
    """
    if isinstance(loader.dataset, IterableDataset) or (sampler is None and batch_sampler is None):
        return
    own = unwrapped(batch_sampler)
    if own is not None:
        sampler = shown = getattr(own, "sampler", None)
        if shown is None or hasattr(own, "set_epoch"):
            sampler = loader.sampler if isinstance(own, Sequence) else own
            shown = (_ShownFixed if isinstance(own, Sequence) else _ShownSeeded)(loader.dataset, own)
        if loader.seed is None and not isinstance(sampler, OrderSampler):
            fixed = isinstance(sampler, torch.utils.data.SequentialSampler) or type(own) is not BatchSampler
            shown = (_ShownInOrder if fixed else _ShownShuffled)(loader.dataset, own)
        _set(loader, sampler=shown)
        if isinstance(loader.sampler, OrderSampler) and type(batch_sampler) is BatchSampler:
            _set(loader, batch_size=own.batch_size, drop_last=own.drop_last)
    _record(loader, loader.sampler if own is None else sampler, own)


class _Shown:
    """What a loader may show as its ``sampler`` beside a user's batch sampler, for Lightning to see.

    It gives what the ``SequentialSampler`` gives that torch's loader shows there, and passes on the epochs that
    Lightning names.
    """

    def __init__(self, dataset: Any, batch_sampler: Any) -> None:
        # the constructors of torch's samplers would ask for a length and a process group, which are not needed here
        self.data_source, self._batch_sampler = dataset, batch_sampler

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)

    @property
    def epoch(self) -> Any:
        """The epoch that the batch sampler was told, if it shows one."""
        return getattr(self._batch_sampler, "epoch", None)

    def set_epoch(self, epoch: int) -> None:
        """Name an epoch to the batch sampler, if it wants to know."""
        if callable(set_epoch := getattr(self._batch_sampler, "set_epoch", None)):
            set_epoch(epoch)


class _ShownInOrder(_Shown, torch.utils.data.SequentialSampler):
    """Lightning treats it as it treats torch's."""


class _ShownShuffled(_Shown, torch.utils.data.RandomSampler):
    """The same, but ``overfit_batches`` does not take it for one in order: it can make torch's batch sampler again."""

    replacement, generator, _num_samples = False, None, None


class _ShownSeeded(_Shown, DistributedSampler[Any]):  # type: ignore[override] # the epoch is the batch sampler's
    """Lightning does not shard it: it would refuse a batch sampler that it cannot make again."""


class _ShownFixed(_ShownSeeded, torch.utils.data.SequentialSampler):  # type: ignore[override] # as above
    """The same for a sequence of batches, which ``overfit_batches`` leaves as it is."""


def unwrapped(batch_sampler: Any) -> Any:
    """Look through the wrapper that Lightning puts around the batch sampler of a prediction."""
    return getattr(batch_sampler, "_batch_sampler", batch_sampler)


def _record(loader: Any, sampler: Any, batch_sampler: Any) -> None:
    object.__setattr__(loader, _RECORD, [((sampler, batch_sampler), _settle)])


def _set(loader: Any, **attributes: Any) -> None:
    loader.__dict__.update(attributes)  # torch's loader forbids it once it is made


# -- a loader that Lightning rebuilt ------------------------------------------------------------------------


def _settle(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Put right a loader that Lightning made of one with these samplers; without a seed, warn instead where it shards.

    Raises:
        ValueError: If there is a seed, and it would not give what those samplers give; their class and the remedy are
            named.
    """
    if batch_sampler is not None and unwrapped(rebuilt.batch_sampler) is batch_sampler:
        return
    now = _injected(rebuilt)
    if now is not sampler and isinstance(now, DistributedSampler) and not isinstance(now, OrderSampler):
        if rebuilt.seed is None:
            _warn_of_sharding(rebuilt, now, sampler, batch_sampler)
        else:
            _put_back(rebuilt, sampler, batch_sampler)
    elif unwrapped(rebuilt.batch_sampler) is not rebuilt.batch_sampler:
        _settle_prediction(rebuilt, sampler, batch_sampler)
    elif now is not sampler:
        _settle_unshuffled(rebuilt, sampler, batch_sampler)


def _injected(rebuilt: Any) -> Any:
    """Return the sampler that Lightning put into a loader, or into its batch sampler under whatever name."""
    batches = unwrapped(rebuilt.batch_sampler)
    held = getattr(batches, "sampler", None)
    if held is None:
        held = next(
            (one for one in getattr(batches, "__dict__", {}).values() if isinstance(one, Sampler)), None
        )
    return rebuilt.sampler if held is None else held


def _put_back(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Settle ``use_distributed_sampler`` with a seed: the user's own sampler, which the loader cuts by rank itself."""
    if unwrapped(rebuilt.batch_sampler) is not rebuilt.batch_sampler:  # to predict, which drops nothing
        like = unwrapped(rebuilt.batch_sampler) if batch_sampler is None else batch_sampler
        if type(like) is BatchSampler:
            like = BatchSampler(sampler if batch_sampler is None else like.sampler, like.batch_size, False)
        elif getattr(like, "drop_last", False):
            raise ValueError(_drops_predictions(like))
        _wrap_instead(rebuilt, like)
        _set(rebuilt, sampler=sampler)
    elif batch_sampler is None:
        _cut(rebuilt, sampler, None)
    else:
        # as torch's constructor leaves them beside a batch sampler
        _set(rebuilt, sampler=sampler, batch_sampler=batch_sampler, batch_size=None, drop_last=False)
        _record(rebuilt, sampler, batch_sampler)


def _warn_of_sharding(rebuilt: Any, theirs: Any, sampler: Any, batch_sampler: Any) -> None:
    """Leave ``use_distributed_sampler`` without a seed, and warn once where it is not what the user's sampler gives."""
    lost = _lost_by_sharding(rebuilt, theirs, sampler, batch_sampler)
    given = sampler if batch_sampler is None else batch_sampler
    if lost is None or theirs.rank != 0 or _was_warned_of(given):
        return
    name = f"sampler={_name(sampler)}" if batch_sampler is None else f"batch_sampler={_name(batch_sampler)}"
    warnings.warn(
        f"{name} was replaced by Lightning's {_name(theirs)}, as with torch's DataLoader: {lost}. For each rank's part "
        f"of what it gives, pass seed= (then it is cut by rank) or use {_instead_of(sampler)} with seed=; if it gives "
        "each rank its own part by itself, pass Trainer(use_distributed_sampler=False)",
        UserWarning,
        stacklevel=2,
    )


def _lost_by_sharding(rebuilt: Any, theirs: Any, sampler: Any, batch_sampler: Any) -> str | None:
    """Return what ranks do not get that the user's sampler gives; None: they get its indices."""
    predicts = unwrapped(rebuilt.batch_sampler) is not rebuilt.batch_sampler
    if batch_sampler is not None:
        if type(batch_sampler) is not BatchSampler:
            if batch_sampler is sampler or not _keeps_arguments(batch_sampler):
                return "it was made again over the data set's indices, as far as its arguments are known"
        elif not predicts and batch_sampler.batch_size != rebuilt.batch_size:
            return f"batch_size={batch_sampler.batch_size} became batch_size={rebuilt.batch_size}"
    in_order = type(sampler) is torch.utils.data.SequentialSampler or isinstance(sampler, Sequence)
    if in_order and theirs.shuffle:
        return "its order is shuffled"
    # Lightning's wrapper, which each rank iterates
    wrapped = None if theirs.dataset is rebuilt.dataset else getattr(theirs.dataset, "_sampler", None)
    if in_order or (wrapped is None and _is_plain_random(sampler)):
        return None if len(sampler) == len(theirs.dataset) else "all indices of the data set are given"
    if wrapped is sampler:
        return "each rank draws for itself and takes a part of that, so that samples are doubled and missing"
    return "what it draws is lost, the data set's indices are shared instead"


_WARNED: dict[int, weakref.ref[Any]] = {}  # by id: a sampler need not be hashable


def _was_warned_of(sampler: Any) -> bool:
    """Whether this was asked before for this sampler: a loader is made again for each stage."""
    known = _WARNED.get(id(sampler))
    if known is not None and known() is sampler:
        return True
    try:
        _WARNED[id(sampler)] = weakref.ref(sampler, partial(_forget, id(sampler)))
    except TypeError:  # a list, say
        return False
    return False


def _forget(number: int, gone: weakref.ref[Any]) -> None:
    if _WARNED.get(number) is gone:
        del _WARNED[number]


def _settle_prediction(rebuilt: Any, sampler: Any, batch_sampler: Any) -> None:
    """Settle a prediction that is not sharded: the same batches, with Lightning's wrapper around them."""
    if batch_sampler is None:
        return
    drops = getattr(batch_sampler, "drop_last", False)
    if _keeps_arguments(batch_sampler) and hasattr(batch_sampler, "sampler"):
        if drops and rebuilt.seed is None:  # Lightning's copy drops nothing, but was made over a `_Shown`
            inner = unwrapped(rebuilt.batch_sampler)
            rebuilt.batch_sampler.sampler = inner.sampler = batch_sampler.sampler
            return
        if rebuilt.sampler is batch_sampler.sampler:
            return
    if drops and rebuilt.seed is not None:
        raise ValueError(_drops_predictions(batch_sampler))
    if drops:
        warnings.warn(_drops_predictions(batch_sampler), UserWarning, stacklevel=2)
    _wrap_instead(rebuilt, batch_sampler)
    _set(rebuilt, sampler=sampler)


def _drops_predictions(batch_sampler: Any) -> str:
    return (
        f"batch_sampler={_name(batch_sampler)} has drop_last=True, by which predictions would be missing, and "
        "Lightning cannot rebuild it without; make it with drop_last=False for prediction"
    )


def _wrap_instead(rebuilt: Any, batch_sampler: Any) -> None:
    """Put another batch sampler into the wrapper by which Lightning follows the indices of a prediction."""
    rebuilt.batch_sampler.__dict__.update(
        getattr(batch_sampler, "__dict__", {}), _batch_sampler=batch_sampler
    )


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
    _record(rebuilt, sampler, None if batch_sampler is None else unwrapped(rebuilt.batch_sampler))


# -- samplers ---------------------------------------------------------------------------------------------


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
