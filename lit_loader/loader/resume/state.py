"""A loader's state: saved from the loader's position, and loaded after a check that it fits the loader."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from lit_loader.engine import LoaderSpec, StreamPlace, is_stateful
from lit_loader.errors import NotResumableWarning, ResumeWarning
from lit_loader.loader.lightning import unwrapped
from lit_loader.loader.resume.custom_samplers import (
    NoStateError,
    SamplerPosition,
    find_stateful,
    is_one_shot,
    own_state,
)
from lit_loader.loader.resume.progress import ResumePoint
from lit_loader.loader.resume.replay import check_states, draws, sampler_generators, states_between_epochs
from lit_loader.loader.resume.state_format import VERSION, check_state, is_plain
from lit_loader.loader.resume.streams import StreamPosition, stream_fields, stream_position
from lit_loader.samplers import OrderSampler
from lit_loader.samplers.custom_ranks import plain_index, shards_itself

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
    if reason is None:
        try:
            state = {
                "version": VERSION,
                "resumable": True,
                **_fixed_fields(spec),
                "epoch": point.epoch,
                "last_set": point.last_set,
                "position": point.position,
                "dataset_state": dataset_before,
            }
            if not spec.is_iterable and is_stateful(spec.fetch.dataset):
                state["dataset_state"] = own_state(spec.fetch.dataset)
            if spec.is_iterable:
                state |= stream_fields(point.detail or StreamPosition.start(spec.num_workers))
            elif spec.slicing is None:
                state |= _sampler_fields(spec, point, base_seed_drawn)
            if is_plain([state["dataset_state"], state.get("sampler_state")]):
                return state
            reason = (
                "the sampler's or the dataset's own state is not made of plain values; let its state_dict() return "
                "None, bool, int, float, str, tensors, and lists, tuples and dicts of them"
            )
        except NoStateError as error:
            reason = str(error)
    warnings.warn(f"this loader's state cannot be resumed: {reason}", NotResumableWarning, stacklevel=4)
    return {"version": VERSION, "resumable": False, "reason": reason[:1000]}


def _why_not_resumable(spec: LoaderSpec) -> str | None:
    if not spec.in_order and spec.num_workers > 0:
        return "with in_order=False the batches delivered are not the first ones of the epoch; leave in_order at True"
    if spec.slicing is not None:
        return None
    draws_for_itself = not spec.is_iterable and find_stateful(spec) is None and draws(spec.index_sampler)
    if spec.seed is None and spec.world_size > 1 and draws_for_itself:
        return "without seed= each rank draws for itself, and a state holds the draws of one; give a seed"
    if is_one_shot(spec):
        return "its sampler is an iterator, which cannot be iterated twice; give an iterable with an __iter__ instead"
    return None


def _why_changed(spec: LoaderSpec, point: ResumePoint) -> str | None:
    """Return why an epoch whose sampler was changed after it began cannot be resumed, or None if it was not changed."""
    slicing = spec.slicing
    if slicing is None or point.position == 0 or point.detail in (None, slicing.sampler.revision):
        return None
    name = type(slicing.sampler).__name__
    return f"{name} was changed in the middle of the epoch; save before, or change it between epochs"


def _fixed_fields(spec: LoaderSpec) -> dict[str, Any]:
    """Return the fields that must be the same in a state and in the loader that it is loaded into."""
    length = None if spec.is_iterable else length_of(spec.fetch.dataset)
    fields: dict[str, Any] = {"seed": spec.seed, "dataset_length": length}
    if spec.slicing is not None:
        sampler = spec.slicing.sampler
        return {
            **fields,
            "kind": "order",
            "sampler": type(sampler).__name__,
            "sampler_seed": sampler.seed,
            "fingerprint": sampler.fingerprint(),
            "global_batch": (spec.slicing.batch_size or 1) * spec.world_size,
        }
    size: Any = getattr(unwrapped(spec.batch_sampler), "batch_size", spec.batch_size)
    fields["global_batch"] = size * spec.world_size if type(size) is int and size >= 0 else None
    fields["world_size"] = spec.world_size
    if spec.is_iterable:
        return {**fields, "kind": "stream", "num_workers": spec.num_workers}
    fields["sampler"] = type(spec.custom_sampler).__name__
    if find_stateful(spec) is not None:
        return {**fields, "kind": "sampler"}
    if spec.batch_size is not None and not shards_itself(spec.sampler, spec.batch_sampler):
        # single indices are cut into the same global batches on any number of ranks
        fields["world_size"] = None
    return {**fields, "kind": "replay"}


def _sampler_fields(spec: LoaderSpec, point: ResumePoint, base_seed_drawn: bool) -> dict[str, Any]:
    """Return the fields from which a custom sampler is resumed."""
    detail, stateful = point.detail or SamplerPosition(), find_stateful(spec)
    generators = detail.generators
    if spec.seed is None and generators is None:
        generators = states_between_epochs(spec, base_seed_drawn=base_seed_drawn)
    # The parts of a sampler that shards itself may differ in size, so the number of this rank is not saved.
    alike = stateful is not None or spec.world_size == 1 or spec.global_batches is not None
    fields = {"samples": detail.samples if alike else 0, "generators": generators}
    if stateful is None:
        return {**fields, "digest": detail.digest}
    if detail.sampler_state is not None:
        start = detail.start if point.position > 0 else None
        try:
            if start is not None:  # a tuple is another index than a list
                start = [tuple(plain_index(u)) if isinstance(u, tuple) else plain_index(u) for u in start]
            return {**fields, "sampler_state": copy.deepcopy(detail.sampler_state), "start": start}
        except TypeError as error:
            raise NoStateError(f"the first indices of the epoch cannot be saved: {error}") from None
    state = own_state(stateful)
    if point.position > 0:
        raise NoStateError(f"{type(stateful).__name__}.state_dict() raised or returned None during the epoch")
    return {**fields, "sampler_state": state, "start": None}


# -- loading -----------------------------------------------------------------------------------------------


def load_point(spec: LoaderSpec, state: Any, *, strict: bool) -> ResumePoint | None:
    """Return where a loader resumes from a state, or None if the state is ignored and the epoch begins anew.

    Raises:
        ValueError: If the state cannot be resumed, see `lit_loader.DataLoader.load_state_dict`.
    """
    if spec.seed is not None:
        check_state(state)  # a damaged state is refused, also with resume="restart"
    try:
        return _fitting_point(spec, check_state(state))
    except ValueError as error:
        # Lightning loads states by itself, without arguments. A run that works with torch's loader, which begins the
        # epoch anew, must not fail there because of a state that was saved with a warning.
        is_marked = isinstance(state, dict) and state.get("resumable") is False
        is_ignored = spec.seed is None or spec.resume == "restart" or is_marked
        if strict or not is_ignored:
            raise
        text = f"a loader's state was left aside, and its epoch begins anew. {error}"
        warnings.warn(text, ResumeWarning, stacklevel=4)
        return None


def _fitting_point(spec: LoaderSpec, state: dict[str, Any]) -> ResumePoint:
    if not state["resumable"]:
        raise ValueError(f"the loader that saved this state cannot be resumed: {state['reason']}. {_AFRESH}")
    if (reason := _why_not_resumable(spec)) is not None:
        raise ValueError(f"this loader cannot be resumed: {reason}. {_AFRESH}")
    _refuse_differences(spec, state)
    position, slicing = state["position"], spec.slicing
    if slicing is not None and position > len(slicing.sampler):
        raise ValueError(f"position={position} lies beyond the {len(slicing.sampler)} of an epoch. {_AFRESH}")
    detail: Any = None
    if spec.is_iterable:
        detail = stream_position(state, with_state=spec.fetch.stream_state)
    elif slicing is None:
        if position and "sampler_state" in state and state["sampler_state"] is None:
            raise ValueError(
                f"sampler_state=None in the state, which {state['sampler']} needs to resume at position={position}. "
                f"{_AFRESH}"
            )
        check_states(state["generators"], sampler_generators(spec))
        detail = SamplerPosition._make(map(state.get, SamplerPosition._fields))
    if state["dataset_state"] is not None:
        _load_dataset_state(spec, state["dataset_state"])
    _warn_of_replay(spec, state, detail)
    return ResumePoint(state["epoch"], position, state["last_set"], detail)


def _refuse_differences(spec: LoaderSpec, state: dict[str, Any]) -> None:
    slicing = spec.slicing
    # a sampler that composes batches itself has another order for each global batch size
    same_order = slicing is not None and type(slicing.sampler).batch_order is OrderSampler.batch_order
    may_differ = "global_batch" if same_order and spec.resume == "same_sample" else None
    different = [
        f"{name}={state[name]!r} in the state, {here!r} here"
        for name, here in _fixed_fields(spec).items()
        # a state of another kind has not all of the fields
        if name in state and state[name] != here and name != may_differ
    ]
    if different:
        raise ValueError(
            f"this state does not fit the loader: {'; '.join(different)}. To go on exactly, give what it was saved "
            'with (global_batch is batch_size * world_size; with one of lit_loader\'s samplers, resume="same_sample" '
            f"goes on from the same sample in batches of another size). {_AFRESH}"
        )


def _warn_of_replay(spec: LoaderSpec, state: dict[str, Any], detail: Any) -> None:
    """Warn if samples or indices from before are made again, or if the dataset's draws are not the same."""
    where, position, text = f"epoch {state['epoch']}", state["position"], None
    if spec.is_iterable:
        is_unknown = any(place == StreamPlace(0, 0) for place in detail.places)
        if (
            spec.persistent_workers
            and state["epoch"] > 0
            and is_unknown
            and state["dataset_state"] is not None
        ):
            text = (
                f"the resumed {where} of {type(spec.fetch.dataset).__name__} is not exact: the epoch before was broken "
                "off, and what its persistent workers have made of the dataset since is not known; give "
                "persistent_workers=False"
            )
        num_samples = sum(place.samples for place in detail.places if place.state is None and not place.ended)
        if num_samples and text is None:
            text = (
                f"{type(spec.fetch.dataset).__name__} has no state to go on from: its first {num_samples} samples of "
                f"{where} are made again and dropped; give it state_dict and load_state_dict to save that time"
            )
    elif position and spec.seed is None:
        text = (
            f"without seed= this loader goes on after batch {position} of {where} as torchdata's does: the same "
            "indices follow, what the dataset draws is not repeated; give seed= for the same bits"
        )
    elif position and state["kind"] == "replay":
        text = (
            f"{state['sampler']} has no state_dict: it is iterated anew and its first {position} batches of {where} "
            "are dropped, on the assumption that it gives the same indices again"
        )
    if text is not None:
        warnings.warn(text, ResumeWarning, stacklevel=6)


def _load_dataset_state(spec: LoaderSpec, state: Any) -> None:
    dataset = spec.fetch.dataset
    try:
        dataset.load_state_dict(copy.deepcopy(state))
    except Exception as error:  # also if it has no such method
        raise ValueError(
            f"{type(dataset).__name__}.load_state_dict() raised {type(error).__name__}: {error}; give the dataset "
            f"that the state was saved with. {_AFRESH}"
        ) from error
