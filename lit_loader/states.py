"""A loader and its state: what it would be now, and whether one that was saved fits."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Literal, Protocol, TypeAlias, get_args

from torch.utils.data import IterableDataset

from lit_loader.engine import is_stateful
from lit_loader.errors import NotResumableWarning, ResumeWarning
from lit_loader.passes import stream_state
from lit_loader.planning import Cut, Loader, users_sampler
from lit_loader.resume import (
    NoStateError,
    ResumePoint,
    SamplerDetail,
    StreamDetail,
    checked_state,
    find_stateful,
    is_one_shot,
    own_state,
    sealed,
    stream_detail,
    stream_fields,
)
from lit_loader.samplers import OrderSampler

__all__ = ["Resumable", "Resume", "check_resume", "known_length", "resume_point", "saved_state"]

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


def saved_state(loader: Resumable, point: ResumePoint) -> dict[str, Any]:
    """Return the state of a loader whose next batch is at a point."""
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
            **_fields(loader, point),
        }
        if not isinstance(loader.dataset, IterableDataset) and is_stateful(loader.dataset):
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
    if loader.seed is None:
        return "without seed= it draws from generators of the process, as torch's does; give a seed"
    if not loader.in_order and loader.num_workers > 0:
        return "with in_order=False what was delivered is no beginning of the epoch; leave in_order at True"
    if loader._cut is None and is_one_shot(loader.sampler, loader.batch_sampler):
        return "its sampler is an iterator, which cannot be asked again for what it gave; give something iterable"
    return None


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


def _dataset_length(loader: Loader) -> int | None:
    return None if isinstance(loader.dataset, IterableDataset) else known_length(loader.dataset)


def _fields(loader: Resumable, point: ResumePoint) -> dict[str, Any]:
    """Return the fields that the kind of state has of its own."""
    cut, kind = loader._cut, _kind(loader)
    if cut is not None:
        return _order_fields(loader, cut)
    fields: dict[str, Any] = {"batch_size": loader.batch_size, "world_size": loader._place[1]}
    if kind == "stream":
        detail = point.detail or StreamDetail.start(loader.num_workers)
        return {**fields, "num_workers": loader.num_workers, **stream_fields(detail)}
    detail = point.detail or SamplerDetail()
    stateful = find_stateful(loader.batch_sampler, loader.sampler)
    given = users_sampler(loader)
    fields |= {"sampler": type(given).__name__, "samples": detail.samples}
    if stateful is None:
        alone = loader._place[1] == 1  # other ranks' batches may be of other sizes; each counts its own again
        return {**fields, "samples": detail.samples if alone else 0, "digest": detail.digest}
    if detail.state is not None:
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
    """Return where a loader goes on by a state; None: the state is left aside, as ``resume="restart"`` asks for.

    Raises:
        ValueError: If the state is none, cannot be resumed, or does not fit the loader.
    """
    state = checked_state(state)
    try:
        return _fitting_point(loader, state)
    except ValueError as error:
        if loader.resume != "restart":
            raise
        warnings.warn(f'resume="restart": a state was left aside. {error}', ResumeWarning, stacklevel=3)
        return None


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
    fields: dict[str, Any] = {"batch_size": loader.batch_size, "world_size": loader._place[1]}
    if _kind(loader) == "stream":
        return {**fields, "num_workers": loader.num_workers}
    given = users_sampler(loader)
    return {**fields, "sampler": type(given).__name__}


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
    if kind == "sampler":
        if state["sampler_state"] is None and state["position"]:
            raise ValueError(
                f"sampler_state=None in the state says nothing of how {state['sampler']} goes on at "
                f"position={state['position']}. {_AFRESH}"
            )
        return SamplerDetail(state["samples"], state["sampler_state"])
    where = f"epoch {state['epoch']}"
    if kind == "replay":
        if position := state["position"]:
            _warn(
                f"{state['sampler']} has no state_dict: it is iterated anew and its first {position} batches of "
                f"{where} are dropped, on the assumption that it gives the same indices again"
            )
        return SamplerDetail(state["samples"], None, state["digest"])
    detail = stream_detail(state, with_state=bool(stream_state(loader)))
    num_samples = sum(place.samples for place in detail.places if place.state is None and not place.ended)
    if num_samples:
        _warn(
            f"{type(loader.dataset).__name__} has no state to go on from: its first {num_samples} samples of {where} "
            "are made again and dropped; give it state_dict and load_state_dict to save that time"
        )
    return detail


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
    loader.dataset.load_state_dict(copy.deepcopy(state["dataset_state"]))
