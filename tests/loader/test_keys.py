"""Each draw uses the key that the design defines for it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, Subset

from lit_loader import DataLoader, RandomSampler
from lit_loader.seeding import EpochKeys, RngPurpose, preserved_generators, seed_generators
from tests.support.in_threads import Calls
from tests.support.toys import Drawing, collate_with_draw


def drawn(key):
    with preserved_generators():
        seed_generators(key)
        return torch.rand(2).tolist()


DRAWS = Calls(lambda index: torch.rand(2), 16)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("rank", [0, 1])
def test_collate_functions_draw_from_their_batchs_key(num_workers, batch_size, rank):
    loader = DataLoader(
        range(16),
        batch_size=batch_size,
        seed=7,
        num_workers=num_workers,
        collate_fn=collate_with_draw,
        rank=rank,
        world_size=2,
    )
    for epoch in range(2):
        actual = [draw.tolist() for _, draw in loader]
        assert actual == [drawn(EpochKeys(7, epoch).key(RngPurpose.BATCH, n * 2 + rank)) for n in range(len(actual))]


def test_a_kept_worker_uses_the_keys_of_each_epoch():
    with DataLoader(DRAWS, batch_size=None, seed=7, num_workers=1, persistent_workers=True) as loader:
        for epoch in range(2):
            assert [x.tolist() for x in loader] == [
                drawn(EpochKeys(7, epoch).key(RngPurpose.SAMPLE, p)) for p in range(16)
            ]


@pytest.mark.parametrize(
    "sampler",
    [lambda rank: [0, 1, 2, 3] * 2, lambda rank: DistributedSampler(range(8), 2, rank, shuffle=False)],
    ids=["cut by the loader", "already sharded"],
)
def test_custom_samplers_of_ranks_share_no_keys(sampler):
    def draws(rank):
        loader = DataLoader(
            DRAWS, batch_size=2, sampler=sampler(rank), seed=1, rank=rank, world_size=2, collate_fn=collate_with_draw
        )
        return {tuple(draw.tolist()) for samples, batch_draw in loader for draw in (*samples, batch_draw)}

    assert len(draws(0)) == len(draws(1)) == 6
    assert not draws(0) & draws(1)


def test_an_epoch_named_to_a_custom_sampler_reaches_the_keys():
    sampler = DistributedSampler(DRAWS, num_replicas=1, rank=0, shuffle=False)
    loader = DataLoader(DRAWS, batch_size=None, sampler=sampler, seed=7)
    sampler.set_epoch(3)
    assert next(iter(loader)).tolist() == drawn(EpochKeys(7, 3).key(RngPurpose.SAMPLE, 0))
    assert next(iter(loader)).tolist() == drawn(EpochKeys(7, 4).key(RngPurpose.SAMPLE, 0))


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(4):
            yield torch.rand(2).tolist()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_keys_of_a_stream(rank):
    loader = DataLoader(Stream(), batch_size=2, seed=7, rank=rank, world_size=2, collate_fn=collate_with_draw)
    (samples, first), (more, second) = list(loader)
    keys = EpochKeys(7, 0)
    worker = rank << 32
    assert samples + more == [drawn(keys.key(RngPurpose.STREAM, worker, count)) for count in range(4)]
    assert [first.tolist(), second.tolist()] == [
        drawn(keys.key(RngPurpose.STREAM_BATCH, worker, count)) for count in range(2)
    ]


def test_the_iter_of_a_stream_has_a_key():
    class Start(IterableDataset):
        def __iter__(self):
            return iter([torch.rand(2).tolist()])

    actual = list(DataLoader(Start(), batch_size=None, seed=7, collate_fn=lambda sample: sample))
    assert actual == [drawn(EpochKeys(7, 0).key(RngPurpose.STREAM_START, 0))]


def test_a_subclass_of_subset_is_not_unwrapped():
    class Doubled(Subset):
        __getitems__ = None

        def __getitem__(self, index):
            return super().__getitem__(index) * 2

    assert next(iter(DataLoader(Doubled(range(16), [3, 4]), batch_size=2, seed=0))).tolist() == [6, 8]


def test_a_subset_takes_lists_of_indices_as_torchs_does():
    dataset = Subset(Calls(torch.tensor, 16), range(10, 16))
    loader = DataLoader(dataset, sampler=BatchSampler(range(6), 3, False), batch_size=None, seed=1)
    assert [batch.tolist() for batch in loader] == [[10, 11, 12], [13, 14, 15]]


def test_a_batch_sampler_that_would_iterate_ours_by_itself_is_refused():
    class Own(BatchSampler):
        pass

    with pytest.raises(ValueError, match="batch_sampler=Own iterates RandomSampler"):
        DataLoader(Drawing(), batch_sampler=Own(RandomSampler(23), 2, False), seed=1)
    assert len(list(DataLoader(Drawing(), batch_sampler=Own(RandomSampler(23), 2, True)))) == 11
