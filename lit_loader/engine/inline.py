"""An epoch without workers: the consumer's own thread makes each batch when the consumer asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lit_loader.engine.fetch import IterableFetcher, make_fetcher
from lit_loader.engine.spec import EndOfEpoch, FetchSpec, Task
from lit_loader.engine.stats import Counters
from lit_loader.foundation.stage_times import StageClock
from lit_loader.seeding import preserved_generators


class InlineBatches:
    """Make the batches of an epoch one by one. Nothing is prefetched, so it needs no scheduler.

    Args:
        tasks: The epoch's tasks in order. After an error of the sampler, iteration continues with the next task, as
            in torch.
        spec: How batches are made.
        counters: The loader's counters.
        iterate: If True, call ``iter(dataset)`` at once.
    """

    def __init__(self, tasks: Iterator[Task], spec: FetchSpec, counters: Counters, *, iterate: bool) -> None:
        self._tasks = tasks
        self._fetcher = make_fetcher(spec)
        self._counters = counters
        if iterate and isinstance(self._fetcher, IterableFetcher):
            self._fetcher.start(None)

    def next_batch(self) -> Any:
        """Return the next batch.

        Raises:
            EndOfEpoch: After the last one.
            StopIteration: Without a key, if a map dataset raises it. It ends the loop, as in torch.
            Exception: An error of the dataset, the collate function or the sampler.
        """
        task = next(self._tasks, None)
        if task is None:
            raise EndOfEpoch
        fetcher = self._fetcher
        try:
            if self._counters.is_measuring:
                return self._make_measured(task)
            if task.key is None:
                return fetcher.collate(fetcher.samples(task), None)
            with preserved_generators():
                return fetcher.collate(fetcher.samples(task), task.key)
        except StopIteration:
            if isinstance(fetcher, IterableFetcher):
                raise EndOfEpoch from None
            raise

    def _make_measured(self, task: Task) -> Any:
        fetcher = self._fetcher
        # A clock for each batch, because several threads may share an iterator.
        clock = StageClock()
        is_batch = False
        try:
            with clock, contextlib.nullcontext() if task.key is None else preserved_generators():
                clock.start_task()
                samples = fetcher.samples(task)
                clock.start_collating(task.number, fetcher.count(samples, task))
                batch = fetcher.collate(samples, task.key)
            is_batch = True
            return batch
        finally:
            self._counters.add(0, clock.take(), is_batch)

    def stream_ends(self) -> list[Any]:
        """Return the position at the end of an iterable dataset, or an empty list for a map dataset."""
        return [self._fetcher.end()] if isinstance(self._fetcher, IterableFetcher) else []

    def poll(self) -> bool:
        """Return False: no batch exists before `next_batch`."""
        return False

    def wait_until_idle(self) -> None:
        """Return at once, because no workers exist."""

    @property
    def workers(self) -> list[Any]:
        """An empty list."""
        return []

    def close(self) -> None:
        """Drop the epoch."""
        self._tasks = iter(())
