"""Guarantee: a mixed batch is the same bits whichever worker makes it, in any backend and in a resumed run."""

from __future__ import annotations

import warnings

import pytest
import torch

from lit_loader.collate import BatchMixing
from lit_loader.errors import PrivateGeneratorWarning
from tests.support.drawing_labels import bits, epochs_of, mixing_loader

# Some batches by each method, and some unchanged; other chances in the second epoch.
MIXING = BatchMixing(mixup={"points": {0: 0.4, 1: 0.7}}, cutmix={"epochs": [0, 1], "value": 0.4, "otherwise": 0.1})


@pytest.fixture(scope="module")
def inline():
    return epochs_of(mixing_loader(MIXING))


def test_epochs_have_mixed_and_unmixed_batches_with_other_draws(inline):
    labels = [torch.tensor(batch[1]) for epoch in inline for batch in epoch]
    shares = [batch[(batch > 0) & (batch < 1)] for batch in labels]
    proportions = [share.min().item() for share in shares if len(share)]
    assert 0 < len(proportions) < len(labels)
    assert len(set(proportions)) == len(proportions)


@pytest.mark.parametrize(
    ("method", "num_workers"),
    [
        *[(method, count) for method in ("fork", "thread") for count in (1, 2, 5)],
        ("forkserver", 2),
        # These start slowly; the forkserver above unpickles the same loader.
        *[
            pytest.param(method, count, marks=pytest.mark.soak)
            for method, count in (("forkserver", 1), ("forkserver", 5), ("spawn", 1), ("spawn", 2), ("spawn", 5))
        ],
    ],
)
def test_mixed_batches_do_not_depend_on_workers(inline, method, num_workers):
    arguments = {"num_workers": num_workers, "persistent_workers": True, "worker_method": "thread"}
    if method != "thread":
        arguments |= {"worker_method": "multiprocessing", "multiprocessing_context": method}
    assert epochs_of(mixing_loader(MIXING, **arguments)) == inline


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_run_resumed_in_mid_epoch_mixes_the_same_batches(inline, method):
    with mixing_loader(MIXING) as loader:
        list(loader)
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = loader.state_dict()
    with mixing_loader(MIXING, num_workers=2, worker_method=method) as resumed:
        resumed.load_state_dict(state)
        assert [bits(batch) for batch in resumed] == inline[1][2:]


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_mixed_batches_of_two_ranks_do_not_depend_on_workers(method):
    by_rank = []
    for rank in range(2):
        arguments = {"rank": rank, "world_size": 2, "batch_size": 2}
        batches = epochs_of(mixing_loader(MIXING, **arguments))
        assert epochs_of(mixing_loader(MIXING, num_workers=2, worker_method=method, **arguments)) == batches
        by_rank.append(batches)
    ids = sorted(index for batches in by_rank for batch in batches[0] for index in batch[2])
    assert ids == list(range(22))
    assert [batch[1] for batch in by_rank[0][0]] != [batch[1] for batch in by_rank[1][0]]


def test_mixed_batches_of_several_labels_do_not_depend_on_workers():
    mixing = BatchMixing(mixup=0.5, cutmix=0.5)
    batches = epochs_of(mixing_loader(mixing, multi_label=True))
    assert epochs_of(mixing_loader(mixing, multi_label=True, num_workers=2)) == batches
    arguments = {"num_workers": 2, "worker_method": "thread"}
    assert epochs_of(mixing_loader(mixing, multi_label=True, **arguments)) == batches


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_check_of_repeatability_does_not_take_mixed_samples_for_unrepeatable(method):
    # It compares the samples after they were collated, so mixing must not write to them.
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivateGeneratorWarning)
        for num_workers in (0, 1):
            loader = mixing_loader(BatchMixing(mixup=1.0), num_workers=num_workers, worker_method=method)
            epochs_of(loader, count=1)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loader_without_a_seed_is_refused(num_workers):
    loader = mixing_loader(BatchMixing(cutmix=1.0), seed=None, num_workers=num_workers)
    with pytest.raises(RuntimeError, match=r"BatchMixing needs a loader with a seed.*pass seed=0"):
        next(iter(loader))


def test_mixing_ends_with_its_schedule_in_persistent_workers():
    mixing = BatchMixing(cutmix={"epochs": [0, 1]}, cutmix_alpha=5.0)
    epochs = epochs_of(mixing_loader(mixing, num_workers=2, persistent_workers=True))
    is_soft = [any(0 < value < 1 for batch in epoch for row in batch[1] for value in row) for epoch in epochs]
    assert is_soft == [True, False]


def test_batches_without_mixing_keep_their_bits():
    with mixing_loader(BatchMixing()) as loader:
        batch = next(iter(loader))
    with mixing_loader(BatchMixing()) as loader:
        loader.collate_fn = type(loader.collate_fn)()
        plain = next(iter(loader))
    assert torch.equal(batch.images, plain.images)
    assert torch.equal(batch.labels.argmax(dim=1), plain.labels)
