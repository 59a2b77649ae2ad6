"""What all workers of a pool have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lit_loader.engine.failures import OnBadSample
from lit_loader.engine.fetch import Aim, Fetcher, Placer, keep, make_fetcher
from lit_loader.engine.stream_state import TrackedStream
from lit_loader.engine.tolerant import TolerantFetcher
from lit_loader.seeding import seed_process
from lit_loader.types import CollateFn, WorkerInitFn

__all__ = ["WorkerSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What all workers of a pool have in common.

    Attributes:
        dataset: The dataset; a worker process works on its own copy, threads on the same object.
        batched: Whether tasks name several samples.
        collate_fn: Makes a batch of samples.
        own_collate: Whether it is one of ours: it draws nothing, and may run in any process.
        drop_last: Whether an iterable dataset's short last batch is dropped.
        worker_init_fn: Called once in each worker, after its seeding.
        base_seed: Worker w is seeded with ``base_seed + w``.
        num_workers: Size of the pool.
        on_bad_sample: What becomes of a sample that cannot be made; an iterable dataset's are always raised.
        stream_state: For an iterable dataset: whether its batches come with where their worker is (`Placed`), True:
            and with the dataset's own state; None: they come alone.
    """

    dataset: Any
    batched: bool
    collate_fn: CollateFn
    own_collate: bool
    drop_last: bool
    worker_init_fn: WorkerInitFn | None
    base_seed: int
    num_workers: int
    on_bad_sample: OnBadSample = "raise"
    stream_state: bool | None = None

    def fetcher(self, worker: int = 0, *, aim: Aim = seed_process, place: Placer = keep) -> Fetcher:
        """Return a fetcher for one of the workers; ``aim`` seeds its generators, ``place`` gets its samples."""
        settings: dict[str, Any] = {
            "batched": self.batched,
            "collate_fn": self.collate_fn,
            "aim": aim,
            "place": place,
        }
        if self.on_bad_sample != "raise":
            return TolerantFetcher(self.dataset, **settings)
        settings |= {"drop_last": self.drop_last, "worker": worker}
        if self.stream_state is not None:
            return TrackedStream(self.dataset, with_state=self.stream_state, **settings)
        return make_fetcher(self.dataset, **settings)
