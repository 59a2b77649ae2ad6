"""Partners of mixed samples, drawn when their batch is planned: see NOTE [Partners of a sample] in `lit_loader.mixing`.

NOTE [Numbers of draws]
    Every position of the order has its own 64 draws for each mix: 15 partners and one unused place, with four tries
    each, the partner and three spares. So a partner depends neither on the batch size and the ranks nor on the number
    of partners and the policy on bad samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from lit_loader.engine.bad_samples import NUM_SPARES
from lit_loader.errors import SettingError
from lit_loader.mixing import MAX_PARTNERS, Partner, PartnerDataset, PartnerPool
from lit_loader.seeding import hash_u64, key64
from lit_loader.types import IndexArray, Order

_DRAWS_A_PARTNER: Final = 1 + NUM_SPARES
_DRAWS_A_POSITION: Final = (MAX_PARTNERS + 1) * _DRAWS_A_PARTNER

# Longest order that is stored: 128 MiB, computed in 0.7 s. The other orders are slices of blocks, made for positions
# that follow each other; a position elsewhere takes 0.02 to 0.6 ms.
_MOST_STORED: Final = 1 << 24

DrawPartners: TypeAlias = Callable[[range], list[list[Partner]]]
"""Takes consecutive positions of the order and returns the partners of the sample at each."""


class PartnerDraws:
    """Draws the partners of a dataset's samples.

    Runs in: the main process. The dataset's pools are cached here and never sent to a worker.

    Args:
        dataset: The dataset, whose `partner_pool` is called when a mix is first used.
    """

    def __init__(self, dataset: PartnerDataset) -> None:
        self._dataset = dataset
        self._pools: dict[int, PartnerPool | None] = {}

    def for_epoch(self, order: Order, *, seed: int, epoch: int, multiple: int, spares: bool) -> DrawPartners | None:
        """Return the function that draws the partners of an epoch, or None if no sample of the epoch is mixed.

        Args:
            order: The epoch's order.
            seed: The loader's seed.
            epoch: The epoch, from 0.
            multiple: The sampler's ``batch_multiple``.
            spares: True to draw indices that replace partners which cannot be read.

        Raises:
            SettingError: A mix has more than `MAX_PARTNERS` partners.
        """
        draws = []
        for number, mix in enumerate(self._dataset.mixing):
            chance = mix.chance(epoch)
            # Asked only if needed, because the number may be defined only for epochs in which samples are mixed.
            num_partners = mix.num_partners(epoch) if chance > 0 else 0
            # An integer of numpy is not an int.
            if not isinstance(num_partners, int | np.integer) or not 0 <= num_partners <= MAX_PARTNERS:
                rule = f"in epoch {epoch} of {type(mix).__name__} is not a whole number in [0, {MAX_PARTNERS}]"
                raise SettingError("num_partners", num_partners, rule, "mix fewer images")
            if num_partners > 0:
                draws.append(
                    _MixDraws(
                        mix=number,
                        chance=chance,
                        chance_key=key64(seed, "mixed", number, epoch),
                        key=key64(seed, "partners", number, epoch),
                        num_partners=num_partners,
                        num_spares=NUM_SPARES if spares else 0,
                        pool=self._pool(number),
                        multiple=multiple,
                    )
                )
        if not draws:
            return None
        if any(draw.pool is None for draw in draws):
            order = stored_order(order)

        def partners_at(positions: range) -> list[list[Partner]]:
            partners: list[list[Partner]] = [[] for _ in positions]
            for draw in draws:
                draw.append_partners(partners, positions, order)
            return partners

        return partners_at

    def _pool(self, number: int) -> PartnerPool | None:
        if number not in self._pools:
            self._pools[number] = self._dataset.partner_pool(number)
        return self._pools[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MixDraws:
    """The draws of one mix in one epoch.

    Attributes:
        mix: Number of the mix.
        chance: Probability that a sample is mixed, above 0.
        chance_key: Key of the draws that decide which samples are mixed.
        key: Key of the draws of partners.
        num_partners: Number of partners of a mixed sample.
        num_spares: Number of spares of a partner.
        pool: Where partners are drawn from, or None for the order.
        multiple: The sampler's ``batch_multiple``.
    """

    mix: int
    chance: float
    chance_key: int
    key: int
    num_partners: int
    num_spares: int
    pool: PartnerPool | None
    multiple: int

    def append_partners(self, partners: list[list[Partner]], positions: range, order: Order) -> None:
        """Append the partners of the samples at consecutive positions, each to its list."""
        # A float holds 53 bits exactly, and their quotient is below 1. So a chance of 1 mixes every sample.
        draws = hash_u64(self.chance_key, np.arange(positions.start, positions.stop)) >> np.uint64(11)
        mixed_rows = np.flatnonzero(draws * 2.0**-53 < self.chance)
        if len(mixed_rows) == 0:
            return
        places = np.arange(self.num_partners)[:, None] * _DRAWS_A_PARTNER + np.arange(1 + self.num_spares)
        numbers = (mixed_rows + positions.start)[:, None, None] * _DRAWS_A_POSITION + places
        if self.pool is None:
            indices = draw_indices(order, self.key, numbers, per_position=_DRAWS_A_POSITION, multiple=self.multiple)
            object_rows = np.full_like(indices, -1)
        else:
            # One call for the batch: numpy's overhead takes longer than the draws that are not used.
            start = positions.start * _DRAWS_A_POSITION
            pool_indices, pool_rows = self.pool.draw(self.key, start, positions.stop * _DRAWS_A_POSITION)
            indices = pool_indices[numbers - start]
            object_rows = pool_rows[numbers - start]
        for row, row_indices, row_objects in zip(
            mixed_rows.tolist(), indices.tolist(), object_rows.tolist(), strict=True
        ):
            for tries in map(zip, row_indices, row_objects):
                first, *spares = [(index, None if object_row < 0 else object_row) for index, object_row in tries]
                partners[row].append(Partner(self.mix, *first, tuple(spares)))


def stored_order(order: Order) -> Order:
    """Return an order as an array, unless it is very long, for look-ups at random positions."""
    return order[0 : len(order)] if len(order) <= _MOST_STORED else order


def draw_indices(order: Order, key: int, numbers: IndexArray, *, per_position: int, multiple: int) -> IndexArray:
    """Return indices at positions of an order that are drawn uniformly, so that they have its distribution.

    If the sampler repeats a pattern of ``multiple`` positions, a draw has the same place in the pattern as the sample
    that it is for. With a pattern of sources, both have the same source.

    Args:
        order: The epoch's order.
        key: A 64-bit key.
        numbers: Numbers of the draws, of any shape.
        per_position: How many draws each position of the order has.
        multiple: The sampler's ``batch_multiple``.

    Returns:
        int64 array of the same shape.
    """
    repetitions = hash_u64(key, numbers) % np.uint64(len(order) // multiple)
    positions = repetitions.astype(np.int64) * multiple + numbers // per_position % multiple
    if isinstance(order, np.ndarray):
        stored: IndexArray = order[positions]
        return stored
    indices = [order[position : position + 1][0] for position in positions.ravel().tolist()]
    return np.array(indices, dtype=np.int64).reshape(positions.shape)
