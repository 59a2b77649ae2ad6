"""Which epoch a loader's next iterator gives: counted, named to the loader, or named to its sampler."""

from __future__ import annotations

from typing import Any

from lit_loader.planning import Cut

__all__ = ["EpochCount"]


class EpochCount:
    """The epoch that the next iterator claims.

    Attributes:
        next: Its number, from 0.
        named: The number that was named last; None: none was. Epochs after it may have been counted on.
        renamed: Whether it was named since an epoch was claimed last.
    """

    def __init__(self) -> None:
        self.next = self._times_named = self._foreign = 0
        self.named: int | None = None
        self.renamed = False
        self._ignored: int | None = None

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
        self._find_named(cut=cut, sampler=sampler, batch_sampler=batch_sampler)
        self._take(epoch)

    def hear(self, *, cut: Cut | None, sampler: Any, batch_sampler: Any) -> None:
        """Take over the epoch that was named to the sampler: Lightning does not name it to the loader."""
        epoch = self._find_named(cut=cut, sampler=sampler, batch_sampler=batch_sampler)
        if epoch is not None:
            self._take(epoch)

    def claim(self) -> None:
        """Move on to the epoch after the next one."""
        self.next, self.renamed, self._ignored = self.next + 1, False, None

    def give_back(self, epoch: int) -> None:
        """Come back to an epoch that was claimed."""
        self.next = epoch

    def resume(self, epoch: int, named: int | None) -> None:
        """Go on with an epoch that was reached from a named one: to hear that name again changes nothing."""
        self.next, self.named, self.renamed, self._ignored = epoch, named, False, named

    def _find_named(self, *, cut: Cut | None, sampler: Any, batch_sampler: Any) -> int | None:
        """Return the epoch that was named to the sampler since this was asked last."""
        if cut is not None:
            if cut.sampler.epochs_named == self._times_named:
                return None
            self._times_named = cut.sampler.epochs_named
            return cut.sampler.epoch
        foreign = getattr(batch_sampler, "sampler", sampler)  # torch's DistributedSampler, say
        named = getattr(foreign, "epoch", None) if hasattr(foreign, "set_epoch") else None
        if not isinstance(named, int) or named == self._foreign:
            return None
        self._foreign = named
        return named

    def _take(self, epoch: int) -> None:
        if epoch != self._ignored:
            self.next = self.named = epoch
            self.renamed, self._ignored = True, None
