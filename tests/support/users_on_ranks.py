"""Users' own samplers on real ranks: what `test_ddp.py` runs in its process group, and what must come of it."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, Sampler

from lit_loader import DataLoader, samplers

LENGTH = 23
BATCH_SIZE = 3
SEED = 7


class Drawn(Sampler):
    """Draws from torch's process-wide generator."""

    def __len__(self):
        return LENGTH

    def __iter__(self):
        return iter(torch.randint(LENGTH, (LENGTH,)).tolist())


class Named(Drawn):
    """The same with ``set_epoch``; its draws depend on the epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


class DrawnBatches(BatchSampler):
    """Drops the first index of each batch, so that it is not torch's."""

    def __iter__(self):
        return (batch[1:] for batch in super().__iter__())


class Unmarked(Sampler):
    """Gives each rank its own part, and does not show it."""

    def __init__(self):
        self.part = range(dist.get_rank(), 20, dist.get_world_size())

    def __len__(self):
        return len(self.part)

    def __iter__(self):
        return iter(self.part)


class Broken(Drawn):
    """Raises on the last rank alone."""

    def __iter__(self):
        if dist.get_rank() == dist.get_world_size() - 1:
            raise OSError("no such disk")
        return super().__iter__()


# A loader's arguments, and True if Lightning sets its epochs.
USERS = {
    "drawn": (lambda: {"sampler": Drawn(), "batch_size": BATCH_SIZE}, False),
    "drawn, drop_last": (lambda: {"sampler": Drawn(), "batch_size": BATCH_SIZE, "drop_last": True}, False),
    "torch's weighted": (
        lambda: {
            "sampler": torch.utils.data.WeightedRandomSampler(np.arange(1.0, LENGTH + 1), 30),
            "batch_size": BATCH_SIZE,
        },
        False,
    ),
    "named epochs": (lambda: {"sampler": Named(), "batch_size": BATCH_SIZE}, True),
    "torch's batch sampler": (lambda: {"batch_sampler": BatchSampler(Drawn(), BATCH_SIZE, False)}, False),
    "batches": (lambda: {"batch_sampler": DrawnBatches(Drawn(), BATCH_SIZE, False)}, False),
}
REFUSED = {
    Unmarked: r"Unmarked gives different indices on different ranks (rank 0: ",
    Broken: "Broken gives different indices on different ranks (rank 0: ",
}


def run_refused():
    """Return the error of each rank for the samplers that give different indices to the ranks."""
    errors = {}
    for kind in REFUSED:
        iterator = iter(DataLoader(range(LENGTH), batch_size=BATCH_SIZE, seed=SEED, sampler=kind()))
        errors[kind.__name__] = []
        for _ in range(2):  # refused again: all ranks meet again, and none is a step ahead
            try:
                next(iterator)
            except (ValueError, OSError) as error:
                errors[kind.__name__].append(f"{type(error).__name__}: {error}")
    return errors


def check_refused(errors, rank, world_size):
    for kind, text in REFUSED.items():
        first, second = errors[kind.__name__]
        assert first == second
        if kind is Broken and rank == world_size - 1:
            assert first == "OSError: no such disk"
        else:
            assert first.startswith(f"ValueError: {text}"), first
            assert f"rank {world_size - 1}: " in first


def expected(name, rank, world_size, stage, num_epochs):
    """Return the epoch that Lightning is in, and the indices of a rank in a stage."""
    make, named = USERS[name]
    arguments = make()
    drop_last = arguments.pop("drop_last", False) and stage != "predict"  # Lightning predicts everything
    loader = DataLoader(range(LENGTH), seed=SEED, rank=0, world_size=1, **arguments)
    rows = []
    for epoch in range(num_epochs) if stage in ("fit", "val") else [num_epochs]:
        if named or stage in ("fit", "val"):
            loader.set_epoch(epoch)
        alone = [batch.tolist() for batch in loader]
        if name == "batches":
            last = -(-len(alone) // world_size) * world_size
            mine = [alone[number % len(alone)] for number in range(rank, last, world_size)]
        else:
            order = np.concatenate(alone)
            cut = {"batch_size": BATCH_SIZE, "world_size": world_size, "drop_last": drop_last}
            numbers = range(samplers.num_batches(len(order), **cut))
            mine = [samplers.rank_batch(order, n, rank=rank, **cut).indices.tolist() for n in numbers]
        rows.extend([epoch, *batch] for batch in mine)
    return rows
