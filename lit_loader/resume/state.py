"""A loader's state: saved from the loader's position, and loaded after a check that it fits the loader."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from lit_loader.engine import LoaderSpec, is_stateful
from lit_loader.errors import NotResumableWarning, ResumeWarning
from lit_loader.lightning_compat import is_called_by_lightning, unwrapped
from lit_loader.resume.custom_samplers import (
    NoStateError,
    SamplerPosition,
    find_stateful,
    is_one_shot,
    own_state,
    plain_indices,
)
from lit_loader.resume.progress import ResumePoint
from lit_loader.resume.replay import check_start, draws, own_start, sampler_generators, start_fields
from lit_loader.resume.state_format import VERSION, check_state, is_plain
from lit_loader.resume.streams import StreamPosition, stream_fields, stream_position
from lit_loader.samplers import OrderSampler
from lit_loader.samplers.custom_ranks import shards_itself

_AFRESH = 'To start afresh on purpose, load no state, or give resume="restart"'


def length_of(thing: Any) -> int | None:
    """Return the length of a user's object, or None if it has none."""
    try:
        return len(thing)
    except Exception:  # whatever a user's own length raises
        return None


# -- saving ------------------------------------------------------------------------------------------------


def stream_dataset_state(spec: LoaderSpec) -> Any:
    """Return the state of this process's iterable dataset as it is now, or None if it has none.

    It is saved because a dataset may count its epochs, and the workers of an epoch begin with copies of it. On several
    ranks it is not saved: one rank's state is not that of the others.
    """
    dataset = spec.fetch.dataset
    if not spec.is_iterable or not is_stateful(dataset) or spec.world_size > 1:
        return None
    try:
        state = own_state(dataset)
    except NoStateError:  # then samples are counted
        return None
    return state if is_plain(state) else None


def save_state(
    spec: LoaderSpec, point: ResumePoint, *, base_seed_drawn: bool, dataset_before: Any
) -> dict[str, Any]:
    """Return the state of a loader whose next batch is at a point.

    Args:
        spec: Of the loader.
        point: The point.
        base_seed_drawn: Whether the workers' base seed was drawn already.
        dataset_before: The state of an iterable dataset before that epoch, or None.
    """
    reason = _why_not_resumable(spec) or _why_changed(spec, point)
    if reason is not None:
        return _not_resumable(reason)
    try:
        fields = {
            "resumable": True,
            "kind": _kind(spec),
            "seed": spec.seed,
            "epoch": point.epoch,
            "last_set": point.last_set,
            "position": point.position,
            "dataset_length": _dataset_length(spec),
            **_fields(spec, point, base_seed_drawn),
        }
        if dataset_before is not None:
            fields["dataset_state"] = dataset_before
        elif not spec.is_iterable and is_stateful(spec.fetch.dataset):
            fields["dataset_state"] = own_state(spec.fetch.dataset)
    except NoStateError as error:
        return _not_resumable(str(error))
    state = {"version": VERSION, **fields}
    if not is_plain(state):
        return _not_resumable(
            "the sampler's or the dataset's own state is not made of plain values; let its state_dict() return None, "
            "bool, int, float, str, tensors, and lists, tuples and dicts of them"
        )
    return state


def _not_resumable(reason: str) -> dict[str, Any]:
    warnings.warn(f"this loader's state cannot be resumed: {reason}", NotResumableWarning, stacklevel=4)
    return {"version": VERSION, "resumable": False, "reason": reason[:1000]}


def _why_not_resumable(spec: LoaderSpec) -> str | None:
    if not spec.in_order and spec.num_workers > 0:
        return "with in_order=False the batches delivered are not the first ones of the epoch; leave in_order at True"
    if spec.seed is None and spec.world_size > 1 and _draws_for_itself(spec):
        return (
            "without seed= each rank draws for itself, and a state holds what one of them draws; give a seed"
        )
    if spec.slicing is None and is_one_shot(spec):
        return "its sampler is an iterator, which cannot be iterated twice; give an iterable with an __iter__ instead"
    return None


def _draws_for_itself(spec: LoaderSpec) -> bool:
    if spec.is_iterable:
        return False
    return find_stateful(spec) is None and draws(spec.index_sampler)


def _why_changed(spec: LoaderSpec, point: ResumePoint) -> str | None:
    """Return why an epoch whose sampler was changed after it began cannot be resumed, or None if it was not changed."""
    slicing = spec.slicing
    if slicing is None or point.position == 0 or point.detail in (None, slicing.sampler.revision):
        return None
    name = type(slicing.sampler).__name__
    return f"{name} was changed in the middle of the epoch; save before, or change it between epochs"


def _kind(spec: LoaderSpec) -> str:
    if spec.is_iterable:
        return "stream"
    if spec.slicing is not None:
        return "order"
    return "replay" if find_stateful(spec) is None else "sampler"


def _batch_size(spec: LoaderSpec) -> int | None:
    size = getattr(unwrapped(spec.batch_sampler), "batch_size", spec.batch_size)
    return size if type(size) is int and size >= 0 else None


def _dataset_length(spec: LoaderSpec) -> int | None:
    return None if spec.is_iterable else length_of(spec.fetch.dataset)


def _fields(spec: LoaderSpec, point: ResumePoint, base_seed_drawn: bool) -> dict[str, Any]:
    """Return the fields that belong to the kind of state."""
    kind = _kind(spec)
    if kind == "order":
        return _order_fields(spec)
    fields: dict[str, Any] = {"batch_size": _batch_size(spec), "world_size": spec.world_size}
    if kind == "stream":
        detail = point.detail or StreamPosition.start(spec.num_workers)
        return {**fields, "num_workers": spec.num_workers, **stream_fields(detail)}
    detail = point.detail or SamplerPosition()
    stateful = find_stateful(spec)
    given = spec.custom_sampler
    start = None
    if spec.seed is None:
        start = detail.generators or own_start(sampler_generators(spec), base_seed_drawn=base_seed_drawn)
    fields |= {
        "sampler": type(given).__name__,
        "samples": detail.samples,
        "generators": start_fields(start),
    }
    if stateful is None:
        # The parts of a sampler that shards itself may differ in size, so the number of this rank is not saved.
        alike = spec.world_size == 1 or spec.global_batches is not None
        return {**fields, "samples": detail.samples if alike else 0, "digest": detail.digest}
    if detail.state is not None:
        if detail.start is not None and point.position > 0:
            fields["start"] = plain_indices(detail.start)
        return {**fields, "sampler_state": copy.deepcopy(detail.state)}
    state = own_state(stateful)
    if point.position > 0:
        raise NoStateError(f"{type(stateful).__name__}.state_dict() raised or returned None during the epoch")
    return {**fields, "sampler_state": state}


def _order_fields(spec: LoaderSpec) -> dict[str, Any]:
    slicing = spec.slicing
    assert slicing is not None
    return {
        "sampler": type(slicing.sampler).__name__,
        "sampler_seed": slicing.sampler.seed,
        "fingerprint": slicing.sampler.fingerprint(),
        "global_batch": (slicing.batch_size or 1) * spec.world_size,
    }


# -- loading -----------------------------------------------------------------------------------------------


def load_point(spec: LoaderSpec, state: Any) -> ResumePoint | None:
    """Return where a loader resumes from a state, or None if the state is ignored and the epoch begins anew.

    Raises:
        ValueError: If the state is malformed, cannot be resumed, or does not fit the loader: with a seed, unless the
            loader has ``resume="restart"``, or Lightning loads a state with ``resumable=False``.
    """
    if spec.seed is not None:
        check_state(state)  # a damaged state is refused, also with resume="restart"
    try:
        return _fitting_point(spec, check_state(state))
    except ValueError as error:
        # Torch's loader begins the epoch anew in these cases, so a run that works with it must not fail here.
        as_torch = spec.seed is None or (_is_not_resumable(state) and is_called_by_lightning())
        if spec.resume != "restart" and not as_torch:
            raise
        warnings.warn(
            f"a loader's state was left aside, and its epoch begins anew. {error}",
            ResumeWarning,
            stacklevel=3,
        )
        return None


def _is_not_resumable(state: Any) -> bool:
    """Whether a state has ``resumable=False``."""
    return isinstance(state, dict) and state.get("resumable") is False


def _fitting_point(spec: LoaderSpec, state: dict[str, Any]) -> ResumePoint:
    if not state["resumable"]:
        raise ValueError(
            f"this state was saved by a loader that cannot be resumed: {state['reason']}. {_AFRESH}"
        )
    if (reason := _why_not_resumable(spec)) is not None:
        raise ValueError(f"this loader cannot be resumed: {reason}. {_AFRESH}")
    if state["kind"] != (kind := _kind(spec)):
        raise ValueError(
            f"kind={state['kind']!r} in the state and {kind!r} here: it was saved with another kind of dataset or "
            f"sampler; give those it was saved with. {_AFRESH}"
        )
    here = {"seed": spec.seed, "dataset_length": _dataset_length(spec), **_compared(spec)}
    if _cuts_the_same(spec, state):
        here |= {name: state[name] for name in ("batch_size", "world_size")}
    _refuse_differences(spec, {name: (state[name], value) for name, value in here.items()})
    epoch, position = state["epoch"], state["position"]
    limit = None if spec.slicing is None else len(spec.slicing.sampler)
    if limit is not None and position > limit:
        raise ValueError(f"position={position} lies beyond the {limit} of an epoch. {_AFRESH}")
    if position == limit:
        point = ResumePoint(epoch + 1, 0, state["last_set"])
    else:
        point = ResumePoint(epoch, position, state["last_set"], _detail(spec, state))
    _load_dataset_state(spec, state)
    return point


def _compared(spec: LoaderSpec) -> dict[str, Any]:
    """Return the fields that must be equal in state and loader, with the loader's values."""
    if spec.slicing is not None:
        return _order_fields(spec)
    fields: dict[str, Any] = {"batch_size": _batch_size(spec), "world_size": spec.world_size}
    if _kind(spec) == "stream":
        return {**fields, "num_workers": spec.num_workers}
    given = spec.custom_sampler
    return {**fields, "sampler": type(given).__name__}


def _cuts_the_same(spec: LoaderSpec, state: dict[str, Any]) -> bool:
    """Whether the global batches of a replayed sampler are those of the state, on this number of ranks too."""
    if state["kind"] != "replay" or spec.batch_size is None or state["batch_size"] is None:
        return False
    itself = shards_itself(spec.sampler, spec.batch_sampler)
    return not itself and state["batch_size"] * state["world_size"] == spec.batch_size * spec.world_size


def _needs_start(spec: LoaderSpec) -> bool:
    batches = spec.global_batches
    return batches is not None and batches.keeps_start


def _refuse_differences(spec: LoaderSpec, values: dict[str, tuple[Any, Any]]) -> None:
    different = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    if set(different) == {"global_batch"} and spec.resume == "same_sample":
        slicing = spec.slicing
        assert slicing is not None
        # a sampler that composes batches itself has another order for each global batch size
        if type(slicing.sampler).batch_order is OrderSampler.batch_order:
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


def _detail(spec: LoaderSpec, state: dict[str, Any]) -> Any:
    kind = state["kind"]
    if kind == "order":
        return None
    where = f"epoch {state['epoch']}"
    if kind in ("sampler", "replay"):
        return _sampler_detail(spec, state, where)
    detail = stream_position(state, with_state=bool(spec.fetch.stream_state))
    num_samples = sum(place.samples for place in detail.places if place.state is None and not place.ended)
    if num_samples:
        _warn(
            f"{type(spec.fetch.dataset).__name__} has no state to go on from: its first {num_samples} samples of "
            f"{where} are made again and dropped; give it state_dict and load_state_dict to save that time"
        )
    return detail


def _sampler_detail(spec: LoaderSpec, state: dict[str, Any], where: str) -> SamplerPosition:
    position, stateful = state["position"], state["kind"] == "sampler"
    generators = check_start(state["generators"], sampler_generators(spec))
    if stateful and state["sampler_state"] is None and position:
        raise ValueError(
            f"sampler_state=None in the state, which {state['sampler']} needs to resume at position={position}. "
            f"{_AFRESH}"
        )
    if stateful and position and "start" not in state and _needs_start(spec):
        raise ValueError(
            f"the state lacks `start`, the first indices of the epoch, by which its end is filled up on "
            f"world_size={spec.world_size} ranks. {_AFRESH}"
        )
    if position and spec.seed is None:
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
        return SamplerPosition(state["samples"], state["sampler_state"], start=first, generators=generators)
    return SamplerPosition(state["samples"], None, state["digest"], generators=generators)


def _warn(text: str) -> None:
    warnings.warn(text, ResumeWarning, stacklevel=5)


def _load_dataset_state(spec: LoaderSpec, state: dict[str, Any]) -> None:
    if "dataset_state" not in state:
        return
    if not is_stateful(spec.fetch.dataset):
        raise ValueError(
            f"the state holds one of the dataset's own, and {type(spec.fetch.dataset).__name__} has no "
            f"load_state_dict; give the dataset that it was saved with. {_AFRESH}"
        )
    try:
        spec.fetch.dataset.load_state_dict(copy.deepcopy(state["dataset_state"]))
    except Exception as error:
        raise ValueError(
            f"{type(spec.fetch.dataset).__name__}.load_state_dict() raised {type(error).__name__}: {error}; give the "
            f"dataset that the state was saved with. {_AFRESH}"
        ) from error
