"""Sequential and random samplers: torch's own classes to those who ask, every index once."""

from __future__ import annotations

import numpy as np
import pytest
import torch.utils.data

from lit_loader.samplers import RandomSampler, SequentialSampler


def test_lightning_can_tell_shuffled_from_sequential():
    assert isinstance(RandomSampler(3), torch.utils.data.RandomSampler)
    assert isinstance(SequentialSampler(3), torch.utils.data.SequentialSampler)
    assert not isinstance(SequentialSampler(3), torch.utils.data.RandomSampler)


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler])
def test_the_length_follows_the_dataset(kind):
    dataset = [0, 1, 2]
    sampler = kind(dataset, seed=0)
    dataset.append(3)
    assert len(sampler) == sampler.num_samples == sampler.num_indices == 4
    assert sorted(sampler) == [0, 1, 2, 3]
    assert sampler.expected_visits().tolist() == [1.0] * 4


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler])
def test_a_sampler_works_in_torchs_own_loader(kind):
    loader = torch.utils.data.DataLoader(range(10), batch_size=4, sampler=kind(10, seed=1))
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(10))


def test_empty_dataset_is_refused_only_by_random_sampler():
    assert list(SequentialSampler([])) == []
    with pytest.raises(ValueError, match="num_samples should be a positive integer value"):
        RandomSampler([])


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler])
def test_sources_without_a_length_are_refused(kind):
    for source in (2.5, None, True, iter([])):
        with pytest.raises(TypeError, match="`data_source` must be a length or have one"):
            kind(source)
    with pytest.raises(ValueError, match="data_source=-1"):
        kind(-1)
    assert len(kind(np.int64(3))) == 3
