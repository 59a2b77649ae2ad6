"""Epochs of a loader with a seed: every sample has a key, and an epoch resumes at any position of its order."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from torch.utils.data import BatchSampler

from lit_loader.engine import (
    BatchKey,
    BatchSlicing,
    FetchSpec,
    KeyedSpec,
    PartnerDraws,
    Task,
    plan_order,
    plan_stream,
    unwrap_subset,
)
from lit_loader.loader.lightning import begin_seen_indices, is_watched, unwrapped
from lit_loader.loader.resume.custom_samplers import SamplerPosition, custom_tasks
from lit_loader.loader.resume.epochs import EpochPlan, EpochState
from lit_loader.loader.resume.progress import Progress, ResumePoint
from lit_loader.loader.resume.state import (
    NoStateError,
    find_stateful,
    length_of,
    resume_error,
    saved_sampler_state,
    state_or_none,
)
from lit_loader.loader.resume.state_format import find_problem
from lit_loader.mixing import PartnerDataset
from lit_loader.samplers import OrderSampler
from lit_loader.samplers.custom_ranks import plain_index, shards_itself
from lit_loader.seeding import key64

# Datasets whose first samples were checked, by id, since a dataset need not be hashable.
_checked_datasets: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class KeyedEpochs(EpochState[KeyedSpec]):
    """The epochs of a loader with a seed.

    The plan of an epoch is a function of (seed, epoch, sampler), so an iterator begins its epoch at its first
    ``next()``, and persistent workers begin the next epoch while this one ends.

    Attributes:
        ranks_compared: True if the ranks have compared their indices of a custom sampler, and they were equal.
    """

    begins_at_iter: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.ranks_compared = False
        # True if the first samples of an epoch were made twice
        self._has_checked = False
        self._partner_draws: PartnerDraws | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "ranks_compared": False, "_has_checked": False, "_partner_draws": None}

    # -- plans ----------------------------------------------------------------------------------------------

    def slicing(self, sampler: Any, batch_sampler: Any) -> BatchSlicing | None:
        """Return how batches are sliced from the order of an `OrderSampler`, or None if a sampler is iterated."""
        if batch_sampler is None:
            return BatchSlicing(sampler, None, False) if isinstance(sampler, OrderSampler) else None
        batches = unwrapped(batch_sampler)
        if type(batches) is BatchSampler and isinstance(batches.sampler, OrderSampler):
            return BatchSlicing(batches.sampler, batches.batch_size, batches.drop_last)
        return None

    def plan(self, spec: KeyedSpec, progress: Progress, point: ResumePoint | None, *, new_iterator: bool) -> EpochPlan:
        """Return how an epoch that was claimed is started; see `EpochState.plan`."""
        epoch = progress.epoch
        fetch = self._checked_fetch(spec, epoch)
        tasks: Iterator[Task]
        position = None
        if spec.is_iterable:
            position = None if point is None else point.detail
            key = BatchKey(spec.seed, epoch, rank=spec.rank)
            tasks = plan_stream(spec.index_sampler, key, places=() if position is None else position.places)
        elif spec.slicing is not None:
            start = 0 if point is None else point.position
            seen = begin_seen_indices(spec.batch_sampler)
            tasks = plan_order(
                spec, spec.slicing, epoch, start=start, seen=seen, partner_draws=self._draws_of(spec.fetch.dataset)
            )
        else:
            seen = begin_seen_indices(spec.batch_sampler)
            # Once for a loader: a collective in every epoch would let ranks wait that end an epoch early.
            gather = None if self.ranks_compared else spec.gather
            tasks = custom_tasks(spec, progress, point, seen, gather=gather)
            self.ranks_compared = self.ranks_compared or gather is not None
        # Two bits less, so that the worker's number can be added and the sum is still a seed that torch accepts.
        base_seed = key64(spec.seed, "workers") >> 2
        return EpochPlan(tasks, fetch, keyed=True, base_seed=base_seed, position=position)

    def _draws_of(self, dataset: Any) -> PartnerDraws | None:
        """Return the draws of a dataset's partners, which keep its pools from epoch to epoch."""
        dataset, _ = unwrap_subset(dataset, [])
        if isinstance(dataset, PartnerDataset) and self._partner_draws is None:
            self._partner_draws = PartnerDraws(dataset)
        return self._partner_draws

    def _checked_fetch(self, spec: KeyedSpec, epoch: int) -> FetchSpec:
        """Return settings by which an epoch's first samples are made twice, if the dataset's were not before."""
        fetch = spec.fetch
        dataset = fetch.dataset
        is_due = spec.check_repeatability and not spec.is_iterable and spec.rank == 0
        if not is_due or self._has_checked or _checked_datasets.get(id(dataset)) is dataset:
            return fetch
        self._has_checked = True
        # A list, for example, has no weak references.
        with contextlib.suppress(TypeError):
            _checked_datasets[id(dataset)] = dataset
        return replace(fetch, checked_epoch=epoch)

    def worker_settings(self, spec: KeyedSpec) -> tuple[Any, ...]:
        """Return the settings of workers that a user may change after they were started."""
        return (
            spec.fetch.collate_fn,
            spec.fetch.on_bad_sample,
            spec.worker_init_fn,
            spec.worker_method,
            spec.num_workers,
            spec.max_worker_restarts,
            spec.hang_timeout_s,
            spec.default_dtype,
        )

    def epoch_settings(self, spec: KeyedSpec) -> tuple[Any, ...] | None:
        """Return the settings that an epoch begun ahead depends on, or None if the next epoch is not begun ahead."""
        slicing = spec.slicing
        if slicing is None or not spec.persistent_workers or is_watched(spec.batch_sampler):
            return None
        sampler = slicing.sampler
        return (
            *(spec.seed, spec.rank, spec.world_size, *slicing),
            *(sampler.revision, sampler.seed, len(sampler), sampler.num_indices),
            *(spec.in_order, spec.timeout_s, spec.prefetch_factor),
        )

    def _count_batches(self, spec: KeyedSpec) -> int | None:
        return length_of(spec.counted_sampler)

    def _begin_progress(self, spec: KeyedSpec, point: ResumePoint) -> Progress:
        slicing = spec.slicing
        if slicing is None:
            progress = super()._begin_progress(spec, point)
            if progress.first is None and not spec.is_iterable:
                progress.first = SamplerPosition(sampler_state=state_or_none(find_stateful(spec)))
            return progress
        return Progress(
            point.epoch,
            point.last_set,
            start=point.position,
            stride=(slicing.batch_size or 1) * spec.world_size,
            num_batches=spec.count_sliced(slicing, len(slicing.sampler) - point.position),
            first=slicing.sampler.revision,
        )

    # -- state ----------------------------------------------------------------------------------------------

    def _may_ignore(self, spec: KeyedSpec, state: Any) -> bool:
        # A damaged state raises, also with resume="restart". A state that was saved with a warning as not resumable
        # does not, because Lightning loads states without arguments and a run must not fail there.
        return find_problem(state) is None and (spec.resume == "restart" or not state["resumable"])

    def _has_one_order(self, spec: KeyedSpec) -> bool:
        # A sampler that composes batches itself has another order for each global batch size.
        slicing = spec.slicing
        return slicing is not None and type(slicing.sampler).batch_order is OrderSampler.batch_order

    def _why_changed(self, spec: KeyedSpec, point: ResumePoint) -> str | None:
        slicing = spec.slicing
        if slicing is None or point.position == 0 or point.detail in (None, slicing.sampler.revision):
            return None
        name = type(slicing.sampler).__name__
        return f"{name} was changed in the middle of the epoch; save before, or change it between epochs"

    def _sampler_identity(self, spec: KeyedSpec) -> dict[str, Any]:
        if spec.slicing is not None:
            sampler = spec.slicing.sampler
            return {
                "kind": "order",
                "sampler": type(sampler).__name__,
                "sampler_seed": sampler.seed,
                "fingerprint": sampler.fingerprint(),
                "global_batch": (spec.slicing.batch_size or 1) * spec.world_size,
            }
        identity = super()._sampler_identity(spec)
        is_replayed = identity["kind"] == "replay"
        # Single indices are cut into the same global batches on any number of ranks.
        if is_replayed and spec.batch_size is not None and not shards_itself(spec.sampler, spec.batch_sampler):
            identity["world_size"] = None
        return identity

    def _kind_without_state(self, spec: KeyedSpec) -> str:
        return "replay"

    def _sampler_fields(self, spec: KeyedSpec, point: ResumePoint, *, has_begun: bool) -> dict[str, Any]:
        if spec.slicing is not None:
            return {}
        detail = point.detail or SamplerPosition()
        stateful = find_stateful(spec)
        # The parts of a sampler that shards itself may differ in size, so the number of this rank is not saved.
        is_alike = stateful is not None or spec.world_size == 1 or spec.global_batches is not None
        samples = detail.samples if is_alike else 0
        if stateful is None:
            return {"samples": samples, "digest": detail.digest}
        sampler_state = saved_sampler_state(stateful, detail.sampler_state, point.position)
        start = detail.start if point.position > 0 else None
        if start is not None:
            try:
                # A tuple is another index than a list.
                start = [tuple(plain_index(i)) if isinstance(i, tuple) else plain_index(i) for i in start]
            except TypeError as error:
                raise NoStateError(f"the first indices of the epoch cannot be saved: {error}") from None
        return {"samples": samples, "sampler_state": sampler_state, "start": start}

    def _sampler_detail(self, spec: KeyedSpec, state: dict[str, Any]) -> SamplerPosition | None:
        position = state["position"]
        if spec.slicing is None:
            return SamplerPosition(
                state["samples"], state.get("sampler_state"), state.get("digest"), state.get("start")
            )
        num_positions = len(spec.slicing.sampler)
        if position > num_positions:
            raise resume_error(f"position={position} is beyond the {num_positions} of an epoch")
        return None

    def _sampler_notice(self, state: dict[str, Any]) -> str | None:
        if state["kind"] != "replay":
            return None
        return (
            f"{state['sampler']} has no state_dict: it is iterated anew and its first {state['position']} batches of "
            f"epoch {state['epoch']} are dropped, on the assumption that it gives the same indices again"
        )
