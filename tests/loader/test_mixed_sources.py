"""A mix of sources is exact in every batch of every rank, also in the last one and with replaced samples."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.samplers import MixedSourceSampler, RandomSampler

LENGTHS = (30, 7)
COUNTS = (3, 1)


class Numbers(Dataset):
    """Indices as samples; every fifth one fails."""

    def __init__(self, fails=False):
        self.fails = fails

    def __len__(self):
        return sum(LENGTHS)

    def __getitem__(self, index):
        if self.fails and index % 5 == 0:
            raise ValueError(f"no sample {index}")
        return index


def batches(*, batch_size, world_size, epoch=0, **settings):
    """Return the batches of each rank as lists of indices."""
    sampler = MixedSourceSampler([RandomSampler(LENGTHS[0]), LENGTHS[1]], COUNTS, num_samples=44)
    by_rank = []
    for rank in range(world_size):
        ranks = {"rank": rank, "world_size": world_size}
        with DataLoader(
            Numbers("on_bad_sample" in settings), batch_size, sampler=sampler, seed=3, **ranks, **settings
        ) as loader:
            loader.set_epoch(epoch)
            by_rank.append([batch.tolist() for batch in loader])
    return by_rank


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [4, 8])
def test_every_batch_of_every_rank_has_the_mix(world_size, batch_size):
    for epoch in (0, 2):
        by_rank = batches(batch_size=batch_size, world_size=world_size, epoch=epoch)
        assert len({len(rank) for rank in by_rank}) == 1
        for batch in [batch for rank in by_rank for batch in rank]:
            assert sum(index < LENGTHS[0] for index in batch) == len(batch) * 3 // 4


def test_ranks_together_draw_what_one_process_draws():
    (alone,) = batches(batch_size=8, world_size=1)
    by_rank = batches(batch_size=4, world_size=2)
    full = [first + second for first, second in zip(*by_rank, strict=True)][:5]
    assert full == alone[:5]


@pytest.mark.filterwarnings("ignore::lit_loader.errors.BadSamplesWarning")
def test_replaced_sample_is_of_the_same_source():
    (original,) = batches(batch_size=4, world_size=1)
    (replaced,) = batches(batch_size=4, world_size=1, on_bad_sample="substitute")
    for index, spare in zip(np.concatenate(original), np.concatenate(replaced), strict=True):
        assert spare % 5 != 0
        assert (index < LENGTHS[0]) == (spare < LENGTHS[0])
        assert spare == index or index % 5 == 0
