"""Weighted draws with replacement in batches of one group: first the batch's group, then its samples within it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lit_loader.samplers.alias import AliasTable
from lit_loader.samplers.orders import SliceableOrder
from lit_loader.types import IndexArray

__all__ = ["GroupDrawOrder", "GroupTables"]


class GroupTables:
    """One alias table over the groups and one of each group's members, made when the group is first drawn.

    Args:
        weights: float64 ``(n,)``, finite, not negative, not all zero, n < 2**31.
        group_ids: The group of each index, ``(n,)``, uint8 or uint16.
    """

    def __init__(
        self, weights: npt.NDArray[np.float64], group_ids: npt.NDArray[np.uint8 | np.uint16]
    ) -> None:
        members = np.argsort(group_ids, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(group_ids))
        # Scaled first, so that sums do not overflow; bincount adds in the order of the indices.
        totals = np.bincount(group_ids, weights=weights / weights.max()).astype(np.float64)
        self._groups = AliasTable(totals)
        self._members = np.split(members, ends[:-1])
        self._weights, self._tables = weights, dict[int, AliasTable]()

    def groups(self, key: int, start: int, stop: int) -> IndexArray:
        """Return the groups of batches ``start`` to ``stop - 1``, int64."""
        return self._groups.draw(key, start, stop)

    def draw(self, group: int, key: int, start: int, stop: int) -> IndexArray:
        """Return draws number ``start`` to ``stop - 1`` within a group of positive weight, int64."""
        members, table = self._members[group], self._tables.get(group)
        if table is None:
            table = self._tables[group] = AliasTable(self._weights[members])
        return members[table.draw(key, start, stop)].astype(np.int64)


class GroupDrawOrder(SliceableOrder):
    """Draws of which every ``global_batch`` in a row are of one group; nothing is stored but the tables.

    Args:
        tables: Of the weights.
        keys: 64 bits for the batches' groups, and for the draws within them.
        length: Number of positions.
        global_batch: Positions a batch; the last one may have fewer.
    """

    def __init__(self, tables: GroupTables, keys: tuple[int, int], length: int, *, global_batch: int) -> None:
        super().__init__(length)
        self._tables, self._keys, self._global_batch = tables, keys, global_batch

    def positions(self, start: int, stop: int) -> IndexArray:
        """Return the draws at these positions, each batch that they touch for itself."""
        size = self._global_batch
        first = start // size
        pieces = [
            self._tables.draw(group, self._keys[1], max(start, batch * size), min(stop, (batch + 1) * size))
            for batch, group in enumerate(
                self._tables.groups(self._keys[0], first, -(-stop // size)).tolist(), first
            )
        ]
        return np.concatenate(pieces)
