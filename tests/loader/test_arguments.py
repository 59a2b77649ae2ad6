"""Errors of arguments that torch would accept show the value, the rule and the remedy."""

from __future__ import annotations

import errno
import multiprocessing
import os
import socket

import pytest
import torch
from torch.utils.data import BatchSampler, Subset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from lit_loader import DataLoader
from lit_loader.collate import DetectionCollate
from lit_loader.collate.default import is_builtin_collate
from lit_loader.samplers import (
    ClassBalancedSampler,
    GroupedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from tests.support.toys import Drawing, plain


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"worker_method": "threads"}, ValueError, r"worker_method='threads' is unknown; it is one of"),
        ({"num_workers": "auto"}, TypeError, r"num_workers='auto' should be an int, got str; data modules also take"),
        ({"multiprocessing_context": "fork"}, ValueError, "no effect on worker threads"),
        ({"multiprocessing_context": multiprocessing.get_context("spawn")}, ValueError, "no effect on worker threads"),
    ],
    ids=["worker_method", "num_workers", "start method", "context"],
)
def test_wrong_arguments_of_workers_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        DataLoader(range(3), **{"num_workers": 1, "worker_method": "thread", **arguments})


class MoreDetection(DetectionCollate):
    """A user's subclass, which may do more than lit_loader's."""


def test_a_users_collate_function_is_not_ours():
    assert is_builtin_collate(DetectionCollate())
    assert is_builtin_collate(default_collate)
    assert not is_builtin_collate(MoreDetection())
    assert not is_builtin_collate(lambda samples: default_collate(samples))


class Marked:
    """A sample that only an entry in torch's table can collate."""


class AllMarked(Drawing):
    def __getitem__(self, index):
        return Marked()


def draw(samples, *, collate_fn_map=None):
    return torch.rand(len(samples))


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_an_entry_of_the_users_in_torchs_table_may_draw_by_the_batchs_key(method, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, Marked, draw)

    def batches(**workers):
        return [plain(batch) for batch in DataLoader(AllMarked(), batch_size=4, seed=3, **workers)]

    assert batches(num_workers=2, worker_method=method) == batches()


LENGTH_MISMATCHES = {
    "weights": ({"sampler": WeightedRandomSampler([1.0] * 10)}, 10),
    "too many weights": ({"sampler": WeightedRandomSampler([1.0] * 51)}, 51),
    "labels": ({"sampler": ClassBalancedSampler([0, 1, 0, 1])}, 4),
    "groups": ({"sampler": GroupedSampler(RandomSampler(4), [0, 1, 0, 1])}, 4),
    "long subset": ({"sampler": SubsetRandomSampler([50])}, 51),
    "batch sampler": ({"batch_sampler": BatchSampler(WeightedRandomSampler([1.0] * 10), 2, False)}, 10),
}


@pytest.mark.parametrize(("samplers", "length"), LENGTH_MISMATCHES.values(), ids=LENGTH_MISMATCHES)
@pytest.mark.parametrize("seed", [None, 0])
def test_sampler_of_another_number_of_samples_is_refused(samplers, length, seed):
    with pytest.raises(ValueError, match=f"was created for {length} samples, but the dataset has 50; .*Subset"):
        DataLoader(range(50), seed=seed, **samplers)


def test_subsets_and_torch_samplers_may_draw_from_a_part_of_the_dataset():
    subset = Subset(range(50), range(10))
    assert len(DataLoader(subset, sampler=WeightedRandomSampler([1.0] * 10, num_samples=30), seed=0)) == 30
    samplers = [SubsetRandomSampler([3, 8]), GroupedSampler(SubsetRandomSampler([0, 1]), [1, 0]), [3, 8]]
    for sampler in [*samplers, torch.utils.data.WeightedRandomSampler([1.0] * 10, 2)]:
        assert len(DataLoader(range(50), sampler=sampler, seed=0)) == 2


def refuse_sockets(*_):
    raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")


@pytest.mark.parametrize(
    "missing",
    [
        lambda patch: patch.delattr(socket, "SOCK_SEQPACKET"),
        lambda patch: patch.delattr(socket, "AF_UNIX"),
        lambda patch: patch.setattr("lit_loader.engine.channels.socket.socketpair", refuse_sockets),
    ],
    ids=["no name", "no family", "refused"],
)
def test_tasks_are_dealt_to_workers_without_message_sockets(missing, monkeypatch):
    def batches(**workers):
        return [plain(batch) for batch in DataLoader(Drawing(), batch_size=4, seed=3, **workers)]

    expected = batches()
    missing(monkeypatch)
    assert batches(num_workers=2) == expected


def test_worker_processes_are_refused_where_pipes_cannot_be_polled(monkeypatch):
    """Windows has no readv, and no poll for its pipes."""
    monkeypatch.delattr(os, "readv")
    with pytest.raises(NotImplementedError, match=r'num_workers=2 processes need pipes.*worker_method="thread"'):
        next(iter(DataLoader(Drawing(), batch_size=4, num_workers=2)))
    assert len(list(DataLoader(Drawing(), batch_size=4, num_workers=2, worker_method="thread"))) > 0
