"""A fetcher that goes on without the samples that cannot be made, or with others in their place.

NOTE [What is bad]
    A sample is bad if ``dataset[index]`` raises an ``Exception``. Always raised are MemoryError, which says nothing of
    the sample, SharedGeneratorError, which is this package's own refusal, and all that is no ``Exception``. What the
    collate function raises is raised too: nobody could say whose fault it is.

NOTE [The same bits]
    A replacement is the sample of another index at the same position: which one was decided with the plan, and before
    each try the generators are seeded for the position anew. So a batch does not depend on who makes it.
"""

from __future__ import annotations

from typing import Any

from lit_loader.engine.failures import Failure, Flawed, failure_of, name_sample
from lit_loader.engine.fetch import MapFetcher, unwrap_subset
from lit_loader.engine.task import BatchKey, Task
from lit_loader.errors import SharedGeneratorError
from lit_loader.seeding import Moment

__all__ = ["TolerantFetcher"]

_NONE_LEFT = object()


class TolerantFetcher(MapFetcher):
    """Fetches sample by sample and keeps account of those that fail: see NOTE [What is bad].

    A task with ``spares`` has a bad sample replaced by the first of them that can be made; in a task without, its batch
    shrinks. What is returned is a `Flawed` if anything failed.
    """

    def samples(self, task: Task) -> Any:
        """Return the samples of a task, or the one sample where nothing is batched."""
        given = list(task.index) if self._batched else [task.index]
        dataset, inners = unwrap_subset(self._dataset, given)
        samples: list[Any] = []
        failures: list[Failure] = []
        lost = False
        for row, (index, inner) in enumerate(zip(given, inners, strict=True)):
            failed = self._try(samples, task, row, index, inner, dataset)
            failures += failed
            lost = lost or (task.spares is not None and bool(failed) and failed[-1].replaced_by is None)
        made: Any = samples
        if not self._batched:
            made = samples[0] if samples else None
        return Flawed(made, failures, lost) if failures else made

    def _try(
        self, samples: list[Any], task: Task, row: int, index: Any, inner: Any, dataset: Any
    ) -> list[Failure]:
        """Add a sample, or one that stands in for it, to the samples; return what failed."""
        failed: list[Failure] = []
        spares = iter(() if task.spares is None else task.spares[row])
        key, position = task.key, None
        if key is not None:
            keys, position = self._epoch_keys(key), key.first + row
        while True:
            if position is not None:
                self._aim(keys, Moment.SAMPLE, position)
            try:
                sample = dataset[inner]
            except Exception as error:
                if isinstance(error, (MemoryError, SharedGeneratorError)):
                    name_sample(error, dataset, inner, index)
                    raise
                error.__traceback__ = None  # whoever keeps the error is not to keep the other samples
                failed.append(
                    failure_of(error, dataset, inner, index, batch=task.number, row=row, position=position)
                )
            else:
                samples.append(self._place(sample))
                return [failure._replace(replaced_by=index) for failure in failed] if failed else failed
            index = next(spares, _NONE_LEFT)
            if index is _NONE_LEFT:
                return failed
            _, (inner,) = unwrap_subset(self._dataset, [index])

    def collate(self, samples: Any, key: BatchKey | None) -> Any:
        """Return the batch of these samples, with what failed; a lost one if there is nothing to deliver."""
        if type(samples) is not Flawed:
            return super().collate(samples, key)
        made, failures, lost = samples
        if lost or (self._batched and not made):
            return Flawed(None, failures, lost=True)
        return Flawed(super().collate(made, key), failures)
