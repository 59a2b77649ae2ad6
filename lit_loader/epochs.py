"""Which epoch a loader's next iterator gives: counted, named to the loader, or named to its sampler."""

from __future__ import annotations

from typing import Any

from lit_loader.planning import Cut

__all__ = ["EpochCount"]


class EpochCount:
    """The epoch that the next iterator claims.

    Attributes:
        next: Its number, from 0.
    """

    def __init__(self) -> None:
        self.next = self._times_named = self._foreign = 0

    def name(self, epoch: int, *, cut: Cut | None, sampler: Any, batch_sampler: Any) -> None:
        """Name the next epoch, to the samplers too.

        Args:
            epoch: Its number.
            cut: How the loader slices an order of ours, if it does.
            sampler: The loader's, as the next one.
            batch_sampler: What makes its batches.

        Raises:
            ValueError: If ``epoch`` is negative.
        """
        if epoch < 0:
            raise ValueError(f"epoch={epoch} is negative; epochs count from 0")
        for named in (sampler, batch_sampler, getattr(batch_sampler, "sampler", None)):
            if callable(set_epoch := getattr(named, "set_epoch", None)):
                set_epoch(epoch)
        self.hear(cut=cut, sampler=sampler, batch_sampler=batch_sampler)
        self.next = epoch

    def hear(self, *, cut: Cut | None, sampler: Any, batch_sampler: Any) -> None:
        """Take over the epoch that was named to the sampler: Lightning does not name it to the loader."""
        if cut is not None:
            if cut.sampler.epochs_named != self._times_named:
                self._times_named, self.next = cut.sampler.epochs_named, cut.sampler.epoch
            return
        foreign = getattr(batch_sampler, "sampler", sampler)  # torch's DistributedSampler, say
        named = getattr(foreign, "epoch", None) if hasattr(foreign, "set_epoch") else None
        if isinstance(named, int) and named != self._foreign:
            self._foreign = self.next = named
