"""One pass without workers: every batch is made in the consumer's own process when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lit_loader.engine.fetch import Fetcher, IterableFetcher
from lit_loader.engine.task import EndOfPass, Task
from lit_loader.seeding import preserved_generators

__all__ = ["InlineRun"]


class InlineRun:
    """Fetches the tasks of a plan one after the other.

    Args:
        plan: The tasks of one epoch, in order.
        fetcher: Makes the batches.
    """

    def __init__(self, plan: Iterator[Task], fetcher: Fetcher) -> None:
        self._plan, self._fetcher = plan, fetcher

    def next_batch(self) -> Any:
        """Return the next batch.

        Raises:
            EndOfPass: When the plan has ended.
            StopIteration: When an iterable dataset has ended, or without a key when the user's code raises it.
        """
        task = next(self._plan, None)
        if task is None:
            raise EndOfPass
        fetcher = self._fetcher
        if task.key is None:
            return fetcher.collate(fetcher.samples(task), None)
        with preserved_generators():
            return fetcher.collate(fetcher.samples(task), task.key)

    def ends(self) -> list[Any]:
        """Return where an iterable dataset is at its end."""
        assert isinstance(self._fetcher, IterableFetcher)
        return [self._fetcher.end()]

    @property
    def workers(self) -> list[Any]:
        """None: there are no workers."""
        return []

    def poll(self) -> bool:
        """Return False: a batch is made when it is asked for."""
        return False

    def close(self) -> None:
        """Drop the pass: a generator of the user's is closed by its last reference."""
        self._plan = iter(())
