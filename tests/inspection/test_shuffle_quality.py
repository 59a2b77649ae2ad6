"""Measures of a shuffle against their definitions, pair by pair, and against full shuffles."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations import LabelSets
from lit_loader.errors import SettingError
from lit_loader.inspection.shuffle_quality import shuffle_quality
from lit_loader.samplers import BlockShuffleSampler, RandomSampler, SequentialSampler


def share_of_equal_pairs(values):
    pairs = list(combinations(values, 2))
    return sum(a == b for a, b in pairs) / len(pairs)


@given(shards=st.lists(st.integers(-1, 3), min_size=2, max_size=20), batch_size=st.integers(2, 6), data=st.data())
def test_same_shard_is_the_share_of_pairs_in_batches(shards, batch_size, data):
    order = data.draw(st.lists(st.integers(0, len(shards) - 1), min_size=2, max_size=30))
    quality = shuffle_quality([order], shards, batch_size=batch_size)
    length = min(batch_size, len(order))
    batches = [order[start : start + length] for start in range(0, len(order) - length + 1, length)]
    expected = np.mean([share_of_equal_pairs([shards[i] for i in batch]) for batch in batches])
    assert quality.same_shard == pytest.approx(expected)
    assert quality.same_shard_shuffled == pytest.approx(share_of_equal_pairs([shards[i] for i in order]))


def test_class_deviation_is_the_mean_distance_of_shares():
    labels = LabelSets(offsets=np.array([0, 1, 1, 3, 4]), classes=np.array([0, 0, 2, 1]))
    quality = shuffle_quality([[0, 2, 3, 3, 1, 1]], [0] * 4, batch_size=2, labels=labels)
    # The epoch has two, two and one labels of the classes; the batch without labels does not count.
    shares = [np.array([2 / 3, 0, 1 / 3]), np.array([0, 1, 0])]
    expected = np.mean([np.abs(share - [0.4, 0.4, 0.2]).sum() / 2 for share in shares])
    assert quality.class_deviation == pytest.approx(expected)
    assert shuffle_quality([[0, 1]], [0] * 4, batch_size=2).class_deviation == 0


def test_epoch_correlation_compares_places_of_images():
    forward = np.arange(50)
    assert shuffle_quality([forward, forward], forward, batch_size=5).epoch_correlation == pytest.approx(1)
    assert shuffle_quality([forward, forward[::-1]], forward, batch_size=5).epoch_correlation == pytest.approx(1)
    assert shuffle_quality([forward], forward, batch_size=5).epoch_correlation == 0
    # Images that come often have no earlier place.
    often = [[0, 5, 0, 6, 0], [0, 6, 0, 5, 0]]
    assert shuffle_quality(often, forward, batch_size=5).epoch_correlation == pytest.approx(1)
    # Images that only one of the epochs has do not count.
    assert shuffle_quality([[0, 1, 2, 9], [0, 2, 1, 8]], forward, batch_size=2).epoch_correlation == pytest.approx(0.5)


def test_scores_rank_shuffles():
    shards = np.repeat(np.arange(20), 50)
    samplers = {
        "sequential": SequentialSampler(1000),
        "whole shards": BlockShuffleSampler(shards, open_shards=2, block_size=None),
        "blocks": BlockShuffleSampler(shards, open_shards=2, block_size=5),
        "random": RandomSampler(1000),
    }
    qualities = {
        name: shuffle_quality([sampler.order(seed=0, epoch=e)[:] for e in range(4)], shards, batch_size=25)
        for name, sampler in samplers.items()
    }
    scores = [quality.score for quality in qualities.values()]
    assert scores[0] == 0
    assert scores[1] == pytest.approx(1 - 1 / 2, abs=0.05)
    assert scores[2] == pytest.approx(1, abs=0.06)
    assert scores[3] == pytest.approx(1, abs=0.02)
    # Normal with variance 1 / (n - 1): three of them stay below three standard deviations.
    assert qualities["random"].epoch_correlation < 3 / 999**0.5
    assert qualities["sequential"].epoch_correlation == pytest.approx(1)


def test_one_shard_has_nothing_to_mix():
    assert shuffle_quality([[0, 1, 2]], [4, 4, 4], batch_size=2).score == 1


def test_batches_without_pairs_are_refused():
    with pytest.raises(SettingError, match="batch_size=1 must be at least 2"):
        shuffle_quality([[0, 1]], [0, 0], batch_size=1)
    with pytest.raises(TypeError, match=r"`batch_size` must be an int, got 2\.5"):
        shuffle_quality([[0, 1]], [0, 0], batch_size=2.5)
    for epochs in ([], [[0]]):
        with pytest.raises(ValueError, match="at least one epoch of at least two visits"):
            shuffle_quality(epochs, [0, 0], batch_size=2)


@pytest.mark.parametrize("visit", [-1, 2])
def test_visit_that_is_no_index_of_the_shards_is_refused(visit):
    with pytest.raises(ValueError, match=rf"must be indices below 2, the number of `shards`, got epochs\[1\]={visit}"):
        shuffle_quality([[0, visit]], [0, 0], batch_size=2)
