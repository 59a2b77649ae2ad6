"""A loader's state: saved from the loader's position, and loaded after a check that it fits the loader."""

from __future__ import annotations

import abc
import copy
import warnings
from typing import Any, Generic, TypeVar

from lit_loader.engine import LoaderSpec, StreamPlace, is_stateful
from lit_loader.errors import NotResumableWarning, ResumeError, ResumeWarning
from lit_loader.loader.lightning import unwrapped
from lit_loader.loader.resume.progress import ResumePoint
from lit_loader.loader.resume.state_format import VERSION, check_state, is_plain
from lit_loader.loader.resume.streams import StreamPosition, stream_fields, stream_position

SpecT = TypeVar("SpecT", bound=LoaderSpec)

_RESTART = "to start afresh on purpose, load no state"


def resume_error(problem: str, remedy: str = "", *, resume: str = "restart") -> ResumeError:
    """Return the error for a state that a loader cannot resume from.

    Args:
        problem: The problem.
        remedy: How to continue from the state, if there is a way.
        resume: The value of the argument ``resume`` that solves the problem.
    """
    # `settings` has one value for each argument.
    remedies = [remedy, _RESTART] if resume == "restart" else [f'{_RESTART}, or give resume="restart"', remedy]
    return ResumeError(problem, remedy="; ".join(filter(None, remedies)), settings={"resume": resume})


# -- users' samplers and datasets --------------------------------------------------------------------------


class NoStateError(Exception):
    """A ``state_dict()`` raised, or returned what cannot be saved."""


def length_of(sized: Any) -> int | None:
    """Return the length of a user's object, or None if it has none."""
    try:
        return len(sized)
    except Exception:
        # A user's own ``__len__`` may raise any error.
        return None


def copy_state(stateful: Any) -> Any:
    """Return a copy of the present ``stateful.state_dict()``.

    Raises:
        NoStateError: If it raises, or returns what cannot be copied. Callers catch it: neither an epoch nor a
            checkpoint must fail because of it.
    """
    try:
        return copy.deepcopy(stateful.state_dict())
    except Exception as error:
        name = type(stateful).__name__
        raise NoStateError(f"{name}.state_dict() raised {type(error).__name__}: {error}") from error


def state_or_none(stateful: Any) -> Any:
    """Return a sampler's present state, or None if there is none."""
    try:
        return None if stateful is None else copy_state(stateful)
    except NoStateError:
        return None


def find_stateful(spec: LoaderSpec) -> Any:
    """Return the batch sampler or sampler that has a state of its own, or None if none has."""
    candidates = (spec.batch_sampler, getattr(spec.batch_sampler, "sampler", None), spec.sampler)
    return next(filter(is_stateful, candidates), None)


def stream_dataset_state(spec: LoaderSpec) -> Any:
    """Return the present state of this process's iterable dataset, or None if it has none.

    It is saved because a dataset may count its epochs, and the workers of an epoch begin with copies of it. On several
    ranks it is not saved, because each rank's dataset has its own state.
    """
    dataset = spec.fetch.dataset
    if not spec.is_iterable or not is_stateful(dataset) or spec.world_size > 1:
        return None
    # Without a state samples are counted.
    state = state_or_none(dataset)
    return state if is_plain(state) else None


def custom_global_batch(spec: LoaderSpec) -> int | None:
    """Return the global batch size of a loader that iterates a sampler, or None if its batches have no such size."""
    size: Any = getattr(unwrapped(spec.batch_sampler), "batch_size", spec.batch_size)
    return size * spec.world_size if type(size) is int and size >= 0 else None


def saved_sampler_state(stateful: Any, sampler_state: Any, position: int) -> Any:
    """Return the state of a sampler at a position: the one noted there, or the present one between two epochs.

    Raises:
        NoStateError: If there is none.
    """
    if sampler_state is not None:
        return copy.deepcopy(sampler_state)
    present_state = copy_state(stateful)
    if position > 0:
        # The present state is ahead of the consumer.
        raise NoStateError(f"{type(stateful).__name__}.state_dict() raised or returned None during the epoch")
    return present_state


# -- saving and loading ------------------------------------------------------------------------------------


class StateRules(abc.ABC, Generic[SpecT]):
    """Saves and loads states; a subclass says how the sampler of a map dataset is resumed."""

    def _save(self, spec: SpecT, point: ResumePoint, *, has_begun: bool, dataset_before: Any) -> dict[str, Any]:
        """Return the state of a loader.

        Args:
            spec: The loader's settings.
            point: Where the next batch is.
            has_begun: True if an iterator has begun the epoch of that batch.
            dataset_before: The state of an iterable dataset before that epoch, or None.
        """
        reason = self._why_not_resumable(spec) or self._why_changed(spec, point)
        if reason is None:
            try:
                state = {
                    "version": VERSION,
                    "resumable": True,
                    **self._fixed_fields(spec),
                    "epoch": point.epoch,
                    "last_set": point.last_set,
                    "position": point.position,
                    "dataset_state": dataset_before,
                }
                if spec.is_iterable:
                    state |= stream_fields(point.detail or StreamPosition.start(spec.num_workers))
                else:
                    if is_stateful(spec.fetch.dataset):
                        state["dataset_state"] = copy_state(spec.fetch.dataset)
                    state |= self._sampler_fields(spec, point, has_begun=has_begun)
                # A checkpoint with anything else would not load under ``weights_only=True``.
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

    def _load(self, spec: SpecT, state: Any, *, strict: bool) -> ResumePoint | None:
        """Return where a loader resumes from a state, or None if the state is ignored and the epoch starts over.

        Raises:
            ValueError: If the state cannot be resumed, see `lit_loader.DataLoader.load_state_dict`.
        """
        try:
            return self._fitting_point(spec, check_state(state))
        except ValueError as error:
            if strict or not self._may_ignore(spec, state):
                raise
            text = f"a loader's state was ignored, and its epoch starts over. {error}"
            warnings.warn(text, ResumeWarning, stacklevel=4)
            return None

    def _fitting_point(self, spec: SpecT, state: dict[str, Any]) -> ResumePoint:
        if not state["resumable"]:
            raise resume_error(f"the loader that saved this state cannot be resumed: {state['reason']}")
        if (reason := self._why_not_resumable(spec)) is not None:
            raise resume_error(f"this loader cannot be resumed: {reason}")
        self._check_differences(spec, state)
        detail: Any
        if spec.is_iterable:
            detail = stream_position(state, with_state=spec.fetch.stream_state)
            notice = _stream_notice(spec, state, detail)
        else:
            if state["kind"] == "sampler" and state["position"] and state["sampler_state"] is None:
                raise resume_error(
                    f"sampler_state=None in the state, which {state['sampler']} needs to resume at "
                    f"position={state['position']}"
                )
            detail = self._sampler_detail(spec, state)
            notice = self._sampler_notice(state) if state["position"] else None
        if state["dataset_state"] is not None:
            _load_dataset_state(spec, state["dataset_state"])
        if notice is not None:
            warnings.warn(notice, ResumeWarning, stacklevel=5)
        return ResumePoint(state["epoch"], state["position"], state["last_set"], detail)

    def _check_differences(self, spec: SpecT, state: dict[str, Any]) -> None:
        differences = {
            name: f"{name}={state[name]!r} in the state, {value!r} here"
            for name, value in self._fixed_fields(spec).items()
            # A state of another kind does not have all of the fields.
            if name in state and state[name] != value
        }
        may_resize = self._has_one_order(spec)
        if may_resize and spec.resume == "same_sample":
            differences.pop("global_batch", None)
        if differences:
            raise resume_error(
                f"this state does not fit the loader: {'; '.join(differences.values())}",
                "to continue, use the settings that it was saved with (global_batch is batch_size * world_size)",
                resume="same_sample" if may_resize and [*differences] == ["global_batch"] else "restart",
            )

    def _fixed_fields(self, spec: SpecT) -> dict[str, Any]:
        """Return the fields that must be the same in a state and in the loader that it is loaded into."""
        seed = getattr(spec, "seed", None)
        if not spec.is_iterable:
            return {"seed": seed, "dataset_length": length_of(spec.fetch.dataset), **self._sampler_identity(spec)}
        return {
            "kind": "stream",
            "seed": seed,
            "dataset_length": None,
            "global_batch": custom_global_batch(spec),
            "world_size": spec.world_size,
            "num_workers": spec.num_workers,
        }

    def _why_not_resumable(self, spec: SpecT) -> str | None:
        """Return why a loader's state cannot be resumed, or None if it can."""
        if not spec.in_order and spec.num_workers > 0:
            return (
                "with in_order=False the batches delivered are not the first ones of the epoch; leave in_order at True"
            )
        samplers = (spec.sampler, spec.batch_sampler)
        inner = (getattr(sampler, "sampler", None) for sampler in samplers)
        if any(hasattr(sampler, "__next__") for sampler in (*samplers, *inner)):
            return (
                "its sampler is an iterator, which cannot be iterated twice; give an iterable with an __iter__ instead"
            )
        return None

    def _why_changed(self, spec: SpecT, point: ResumePoint) -> str | None:
        """Return why an epoch whose sampler was changed after it began cannot be resumed, or None."""
        return None

    def _has_one_order(self, spec: SpecT) -> bool:
        """Return True if the sampler has the same order for every batch size."""
        return False

    @abc.abstractmethod
    def _may_ignore(self, spec: SpecT, state: Any) -> bool:
        """Return True if a state that does not fit is ignored with a warning, and False if it raises."""

    def _sampler_identity(self, spec: SpecT) -> dict[str, Any]:
        """Return the kind of a state, and the fields of the sampler that must fit."""
        return {
            "kind": self._kind_without_state(spec) if find_stateful(spec) is None else "sampler",
            "sampler": type(spec.custom_sampler).__name__,
            "global_batch": custom_global_batch(spec),
            "world_size": spec.world_size,
        }

    @abc.abstractmethod
    def _kind_without_state(self, spec: SpecT) -> str:
        """Return the kind of a state of a custom sampler that has no state of its own."""

    @abc.abstractmethod
    def _sampler_fields(self, spec: SpecT, point: ResumePoint, *, has_begun: bool) -> dict[str, Any]:
        """Return the fields from which the sampler is resumed."""

    @abc.abstractmethod
    def _sampler_detail(self, spec: SpecT, state: dict[str, Any]) -> Any:
        """Return the detail of a `ResumePoint` from the fields of a state; ValueError if they do not fit."""

    @abc.abstractmethod
    def _sampler_notice(self, state: dict[str, Any]) -> str | None:
        """Return the warning about indices that are made again or draws that are not repeated, or None."""


def _stream_notice(spec: LoaderSpec, state: dict[str, Any], position: StreamPosition) -> str | None:
    """Return the warning about samples that are made again, or None."""
    epoch = state["epoch"]
    name = type(spec.fetch.dataset).__name__
    is_unknown = any(place == StreamPlace(0, 0) for place in position.places)
    if spec.persistent_workers and epoch > 0 and is_unknown and state["dataset_state"] is not None:
        return (
            f"the resumed epoch {epoch} of {name} is not exact: the epoch before was broken off, and what its "
            "persistent workers have made of the dataset since is not known; give persistent_workers=False"
        )
    num_samples = sum(place.samples for place in position.places if place.state is None and not place.ended)
    if num_samples == 0:
        return None
    cost = f"its first {num_samples} samples of epoch {epoch} are made again and dropped"
    if not spec.fetch.stream_state:
        return f"the state of {name} is not used on several ranks or with several worker threads: {cost}"
    return f"{name} has no state to resume from: {cost}; give it state_dict and load_state_dict to save that time"


def _load_dataset_state(spec: LoaderSpec, state: Any) -> None:
    dataset = spec.fetch.dataset
    try:
        # A copy, because the dataset may keep and change it, and the state belongs to the caller.
        dataset.load_state_dict(copy.deepcopy(state))
    except Exception as error:
        # Any error of the user's method, or AttributeError if there is no such method.
        raise resume_error(
            f"{type(dataset).__name__}.load_state_dict() raised {type(error).__name__}: {error}",
            "give the dataset that the state was saved with",
        ) from error
