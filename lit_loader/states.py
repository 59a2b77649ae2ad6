"""A loader and its state: what it would be now, and whether one that was saved fits."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Literal, Protocol, TypeAlias, get_args

from torch.utils.data import IterableDataset

from lit_loader.engine import is_stateful
from lit_loader.errors import NotResumableWarning, ResumeWarning
from lit_loader.global_batches import shards_itself
from lit_loader.injection import is_called_by_lightning, unwrapped
from lit_loader.passes import stream_state
from lit_loader.planning import Cut, Loader, sampler_generators, users_sampler
from lit_loader.resume import (
    NoStateError,
    ResumePoint,
    SamplerDetail,
    StreamDetail,
    checked_start,
    checked_state,
    draws,
    find_stateful,
    index_values,
    is_one_shot,
    is_plain,
    own_start,
    own_state,
    sealed,
    start_fields,
    stream_detail,
    stream_fields,
)
from lit_loader.samplers import OrderSampler

__all__ = [
    "Resumable",
    "Resume",
    "check_resume",
    "known_length",
    "resume_point",
    "saved_state",
    "stream_dataset_state",
]

Resume: TypeAlias = Literal["exact", "same_sample", "restart"]
"""What becomes of a state that does not fit: see `lit_loader.DataLoader`."""


class Resumable(Loader, Protocol):
    """A loader that has a state."""

    resume: Resume


def check_resume(resume: object) -> None:
    """Refuse an unknown policy.

    Raises:
        ValueError: If so.
    """
    if resume not in get_args(Resume):
        raise ValueError(f"resume={resume!r} is unknown; it is one of {list(get_args(Resume))}")


def known_length(thing: Any) -> int | None:
    """Return the length of a user's object; None: it tells none."""
    try:
        return len(thing)
    except Exception:  # whatever a user's own length raises
        return None


# -- saving -----------------------------------------------------------------------------------------------


def stream_dataset_state(loader: Resumable) -> Any:
    """Return the state of an iterable dataset of this process as it is now, or None if there is none to be had.

    A dataset may count its epochs: from it the workers of an epoch are made. Not on several ranks: one rank's state is
    not that of the others.
    """
    dataset: Any = loader.dataset
    if not isinstance(dataset, IterableDataset) or not is_stateful(dataset) or loader._place[1] > 1:
        return None
    try:
        state = own_state(dataset)
    except NoStateError:  # its samples are counted
        return None
    return state if is_plain(state) else None


def saved_state(
    loader: Resumable, point: ResumePoint, *, base_seed_drawn: bool, dataset_before: Any
) -> dict[str, Any]:
    """Return the state of a loader whose next batch is at a point.

    Args:
        loader: The loader.
        point: The point.
        base_seed_drawn: Whether the next pass draws no base seed of its workers any more.
        dataset_before: The state of an iterable dataset before that epoch, or None.
    """
    reason = _why_not_resumable(loader) or _why_changed(loader, point)
    if reason is not None:
        return _not_resumable(reason)
    try:
        fields = {
            "resumable": True,
            "kind": _kind(loader),
            "seed": loader.seed,
            "epoch": point.epoch,
            "named": point.named,
            "position": point.position,
            "dataset_length": _dataset_length(loader),
            **_fields(loader, point, base_seed_drawn),
        }
        if dataset_before is not None:
            fields["dataset_state"] = dataset_before
        elif not isinstance(loader.dataset, IterableDataset) and is_stateful(loader.dataset):
            fields["dataset_state"] = own_state(loader.dataset)
    except NoStateError as error:
        return _not_resumable(str(error))
    try:
        return sealed(fields)
    except (TypeError, ValueError) as error:
        return _not_resumable(
            f"the sampler's or the dataset's own state is not made of plain values: {error}"
        )


def _not_resumable(reason: str) -> dict[str, Any]:
    warnings.warn(f"this loader's state cannot be resumed: {reason}", NotResumableWarning, stacklevel=4)
    return sealed({"resumable": False, "reason": reason[:1000]})


def _why_not_resumable(loader: Resumable) -> str | None:
    if not loader.in_order and loader.num_workers > 0:
        return "with in_order=False what was delivered is no beginning of the epoch; leave in_order at True"
    if loader.seed is None and loader._place[1] > 1 and _draws_for_itself(loader):
        return (
            "without seed= each rank draws for itself, and a state holds what one of them draws; give a seed"
        )
    if loader._cut is None and is_one_shot(loader.sampler, loader.batch_sampler):
        return "its sampler is an iterator, which cannot be asked again for what it gave; give something iterable"
    return None


def _draws_for_itself(loader: Resumable) -> bool:
    if isinstance(loader.dataset, IterableDataset):
        return False
    return find_stateful(loader.batch_sampler, loader.sampler) is None and draws(loader._index_sampler)


def _why_changed(loader: Loader, point: ResumePoint) -> str | None:
    """Return why an epoch that was begun with other weights cannot be gone on with; None: it was not."""
    cut = loader._cut
    if cut is None or point.position == 0 or point.detail in (None, cut.sampler.revision):
        return None
    name = type(cut.sampler).__name__
    return f"{name} was changed in the middle of the epoch; save before, or change it between epochs"


def _kind(loader: Loader) -> str:
    if isinstance(loader.dataset, IterableDataset):
        return "stream"
    if loader._cut is not None:
        return "order"
    return "replay" if find_stateful(loader.batch_sampler, loader.sampler) is None else "sampler"


def _batch_size(loader: Loader) -> int | None:
    size = getattr(unwrapped(loader.batch_sampler), "batch_size", loader.batch_size)
    return size if type(size) is int and size >= 0 else None


def _dataset_length(loader: Loader) -> int | None:
    return None if isinstance(loader.dataset, IterableDataset) else known_length(loader.dataset)


def _fields(loader: Resumable, point: ResumePoint, base_seed_drawn: bool) -> dict[str, Any]:
    """Return the fields that the kind of state has of its own."""
    cut, kind = loader._cut, _kind(loader)
    if cut is not None:
        return _order_fields(loader, cut)
    fields: dict[str, Any] = {"batch_size": _batch_size(loader), "world_size": loader._place[1]}
    if kind == "stream":
        detail = point.detail or StreamDetail.start(loader.num_workers)
        return {**fields, "num_workers": loader.num_workers, **stream_fields(detail)}
    detail = point.detail or SamplerDetail()
    stateful = find_stateful(loader.batch_sampler, loader.sampler)
    given = users_sampler(loader)
    start = None
    if loader.seed is None:
        start = detail.generators or own_start(sampler_generators(loader), base_seed_drawn=base_seed_drawn)
    fields |= {
        "sampler": type(given).__name__,
        "samples": detail.samples,
        "generators": start_fields(start),
    }
    if stateful is None:
        # a sampler that shards itself may have other sizes on other ranks; each counts its own again
        alike = loader._place[1] == 1 or loader._global_batches is not None
        return {**fields, "samples": detail.samples if alike else 0, "digest": detail.digest}
    if detail.state is not None:
        if detail.start is not None and point.position > 0:
            fields["start"] = index_values(detail.start)
        return {**fields, "sampler_state": copy.deepcopy(detail.state)}
    state = own_state(stateful)
    if point.position > 0:
        raise NoStateError(
            f"{type(stateful).__name__}.state_dict() gave nothing when it was asked in the epoch"
        )
    return {**fields, "sampler_state": state}


def _order_fields(loader: Loader, cut: Cut) -> dict[str, Any]:
    return {
        "sampler": type(cut.sampler).__name__,
        "sampler_seed": cut.sampler.seed,
        "fingerprint": cut.sampler.fingerprint(),
        "global_batch": (cut.batch_size or 1) * loader._place[1],
    }


# -- loading ----------------------------------------------------------------------------------------------


def resume_point(loader: Resumable, state: Any) -> ResumePoint | None:
    """Return where a loader goes on by a state, or None if the state is left aside and the epoch begins anew.

    Raises:
        ValueError: If the state is malformed, cannot be resumed, or does not fit the loader: with a seed, unless the
            loader has ``resume="restart"``, or Lightning loads a state that says that it cannot be resumed.
    """
    if loader.seed is not None:
        checked_state(state)  # damaged: refused, whatever ``resume`` says
    try:
        return _fitting_point(loader, checked_state(state))
    except ValueError as error:
        # torch's loader begins the epoch anew in these cases, and a run that worked with it must not end here
        as_torch = loader.seed is None or (_is_not_resumable(state) and is_called_by_lightning())
        if loader.resume != "restart" and not as_torch:
            raise
        warnings.warn(
            f"a loader's state was left aside, and its epoch begins anew. {error}",
            ResumeWarning,
            stacklevel=3,
        )
        return None


def _is_not_resumable(state: Any) -> bool:
    """Whether a state says of itself that it cannot be resumed."""
    return isinstance(state, dict) and state.get("resumable") is False


def _fitting_point(loader: Resumable, state: dict[str, Any]) -> ResumePoint:
    if not state["resumable"]:
        raise ValueError(
            f"this state was saved by a loader that cannot be resumed: {state['reason']}. {_AFRESH}"
        )
    if (reason := _why_not_resumable(loader)) is not None:
        raise ValueError(f"this loader cannot be resumed: {reason}. {_AFRESH}")
    if state["kind"] != (kind := _kind(loader)):
        raise ValueError(
            f"kind={state['kind']!r} in the state and {kind!r} here: it was saved with another kind of dataset or "
            f"sampler; give those it was saved with. {_AFRESH}"
        )
    here = {"seed": loader.seed, "dataset_length": _dataset_length(loader), **_compared(loader)}
    if _cuts_the_same(loader, state):
        here |= {name: state[name] for name in ("batch_size", "world_size")}
    _refuse_differences(loader, {name: (state[name], value) for name, value in here.items()})
    epoch, position = state["epoch"], state["position"]
    limit = None if loader._cut is None else len(loader._cut.sampler)
    if limit is not None and position > limit:
        raise ValueError(f"position={position} lies beyond the {limit} of an epoch. {_AFRESH}")
    if position == limit:
        point = ResumePoint(epoch + 1, 0, state["named"])
    else:
        point = ResumePoint(epoch, position, state["named"], _detail(loader, state))
    _load_dataset_state(loader, state)
    return point


def _compared(loader: Resumable) -> dict[str, Any]:
    """Return the fields that must be equal, as they are here."""
    cut = loader._cut
    if cut is not None:
        return _order_fields(loader, cut)
    fields: dict[str, Any] = {"batch_size": _batch_size(loader), "world_size": loader._place[1]}
    if _kind(loader) == "stream":
        return {**fields, "num_workers": loader.num_workers}
    given = users_sampler(loader)
    return {**fields, "sampler": type(given).__name__}


def _cuts_the_same(loader: Resumable, state: dict[str, Any]) -> bool:
    """Whether another number of ranks cuts the state's global batches from a user's sampler, which is replayed."""
    if state["kind"] != "replay" or loader.batch_size is None or state["batch_size"] is None:
        return False
    itself = shards_itself(loader.sampler, loader.batch_sampler)
    return not itself and state["batch_size"] * state["world_size"] == loader.batch_size * loader._place[1]


def _needs_start(loader: Resumable) -> bool:
    batches = loader._global_batches
    return batches is not None and batches.keeps_start


def _refuse_differences(loader: Resumable, values: dict[str, tuple[Any, Any]]) -> None:
    different = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    if set(different) == {"global_batch"} and loader.resume == "same_sample":
        cut = loader._cut
        assert cut is not None
        if type(cut.sampler).batch_order is OrderSampler.batch_order:
            return
    if not different:
        return
    listed = "; ".join(
        f"{name}={saved!r} in the state, {here!r} here" for name, (saved, here) in different.items()
    )
    remedy = "give what it was saved with"
    if "global_batch" in different:
        remedy += " (global_batch is batch_size * world_size"
        remedy += ', or resume="same_sample" to go on from the same sample in batches of another size)'
    raise ValueError(f"this state does not fit the loader: {listed}. To go on exactly, {remedy}. {_AFRESH}")


_AFRESH = 'To start afresh on purpose, load no state, or give resume="restart"'


def _detail(loader: Resumable, state: dict[str, Any]) -> Any:
    kind = state["kind"]
    if kind == "order":
        return None
    where = f"epoch {state['epoch']}"
    if kind in ("sampler", "replay"):
        return _sampler_detail(loader, state, where)
    detail = stream_detail(state, with_state=bool(stream_state(loader)))
    num_samples = sum(place.samples for place in detail.places if place.state is None and not place.ended)
    if num_samples:
        _warn(
            f"{type(loader.dataset).__name__} has no state to go on from: its first {num_samples} samples of {where} "
            "are made again and dropped; give it state_dict and load_state_dict to save that time"
        )
    return detail


def _sampler_detail(loader: Resumable, state: dict[str, Any], where: str) -> SamplerDetail:
    position, stateful = state["position"], state["kind"] == "sampler"
    generators = checked_start(state["generators"], sampler_generators(loader))
    if stateful and state["sampler_state"] is None and position:
        raise ValueError(
            f"sampler_state=None in the state says nothing of how {state['sampler']} goes on at position={position}. "
            f"{_AFRESH}"
        )
    if stateful and position and "start" not in state and _needs_start(loader):
        raise ValueError(
            f"the state lacks `start`, the first indices of the epoch, by which its end is filled up on "
            f"world_size={loader._place[1]} ranks. {_AFRESH}"
        )
    if position and loader.seed is None:
        _warn(
            f"without seed= this loader goes on after batch {position} of {where} as torchdata's does: the same "
            "indices follow, what the dataset draws is not repeated; give seed= for the same bits"
        )
    elif position and not stateful:
        _warn(
            f"{state['sampler']} has no state_dict: it is iterated anew and its first {position} batches of {where} "
            "are dropped, on the assumption that it gives the same indices again"
        )
    if stateful:
        first = state.get("start")
        return SamplerDetail(state["samples"], state["sampler_state"], start=first, generators=generators)
    return SamplerDetail(state["samples"], None, state["digest"], generators=generators)


def _warn(text: str) -> None:
    warnings.warn(text, ResumeWarning, stacklevel=5)


def _load_dataset_state(loader: Loader, state: dict[str, Any]) -> None:
    if "dataset_state" not in state:
        return
    if not is_stateful(loader.dataset):
        raise ValueError(
            f"the state holds one of the dataset's own, and {type(loader.dataset).__name__} has no load_state_dict; "
            f"give the dataset that it was saved with. {_AFRESH}"
        )
    try:
        loader.dataset.load_state_dict(copy.deepcopy(state["dataset_state"]))
    except Exception as error:
        raise ValueError(
            f"{type(loader.dataset).__name__}.load_state_dict() raised {type(error).__name__}: {error}; give the "
            f"dataset that the state was saved with. {_AFRESH}"
        ) from error
