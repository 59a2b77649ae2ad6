"""A sampler's schedule reaches every epoch: prepared ahead, resumed, on any workers and ranks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from lit_loader import DataLoader, current_epoch
from lit_loader.samplers import ClassBalancedSampler, GroupedSampler, MixedSourceSampler, WeightedRandomSampler
from lit_loader.schedules import FunctionSchedule, LinearSchedule

LABELS = np.array([0] * 24 + [1] * 6)
BATCH = 4
NUM_EPOCHS = 4
ENDS = LinearSchedule({0: 0.0, 2: 1.0})


class EpochNumbers(torch.utils.data.Dataset):
    """Each sample is its index, its epoch and a draw."""

    def __len__(self):
        return len(LABELS)

    def __getitem__(self, index):
        return torch.tensor([index, current_epoch(), torch.rand(()).item()], dtype=torch.float64)


def weights_of(epoch):
    """Return weights that favour the first half from epoch 2 on."""
    return np.where(np.arange(len(LABELS)) < 15, 1.0 + epoch // 2, 1.0)


SAMPLERS = {
    "class balanced": lambda: ClassBalancedSampler(LABELS, exponent=ENDS, num_samples=32),
    "weighted": lambda: WeightedRandomSampler(FunctionSchedule(weights_of), 32),
    "grouped": lambda: GroupedSampler(ClassBalancedSampler(LABELS, exponent=ENDS, num_samples=32), LABELS),
    "grouped weighted": lambda: GroupedSampler(WeightedRandomSampler(FunctionSchedule(weights_of), 32), LABELS),
    "mixed": lambda: MixedSourceSampler([24, 6], shares=[1, {"points": {0: 3, 2: 0}}], num_samples=32),
}
INLINE = {}
BACKENDS = {
    "inline": INLINE,
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
    "threads": {"num_workers": 2, "worker_method": "thread", "persistent_workers": True},
    "threads of an epoch": {"num_workers": 2, "worker_method": "thread"},
}


def loader(name, *, batch_size=BATCH, **settings):
    return DataLoader(EpochNumbers(), batch_size, sampler=SAMPLERS[name](), seed=3, **settings)


def epochs_of(data_loader, count=NUM_EPOCHS):
    return [torch.stack([batch.clone() for batch in data_loader]) for _ in range(count)]


def expected(name):
    """Return the epochs of a loader without workers, each made by a sampler that has made no other one."""
    epochs = []
    for epoch in range(NUM_EPOCHS):
        with loader(name) as fresh:
            fresh.set_epoch(epoch)
            epochs += epochs_of(fresh, 1)
    return epochs


@pytest.mark.parametrize("name", SAMPLERS)
def test_each_epoch_is_drawn_with_the_settings_of_its_epoch(name):
    sampler = SAMPLERS[name]()
    for epoch, batches in enumerate(expected(name)):
        order = sampler.batch_order(seed=3, epoch=epoch, global_batch=BATCH)
        assert batches[..., 0].flatten().tolist() == order[:].tolist()
        assert set(batches[..., 1].flatten().tolist()) == {epoch}


def test_class_mix_follows_the_schedule():
    shares = [float(LABELS[batches[..., 0].flatten().long()].mean()) for batches in expected("class balanced")]
    assert shares == [pytest.approx(6 / 30, abs=0.02), pytest.approx(1 / 3, abs=0.02), 0.5, 0.5]


# Orders are drawn in the main process, so other start methods than fork repeat the same code in several seconds.
SLOW = [pytest.param(method, marks=pytest.mark.soak) for method in ("spawn", "forkserver")]


@pytest.mark.parametrize("backend", ["fork", "threads", "threads of an epoch", *SLOW])
@pytest.mark.parametrize("name", ["class balanced", "weighted", "mixed"])
def test_prepared_epochs_and_persistent_workers_have_the_right_settings(name, backend):
    with loader(name, **BACKENDS[backend]) as data_loader:
        for actual, batches in zip(epochs_of(data_loader), expected(name), strict=True):
            assert torch.equal(actual, batches)


@pytest.mark.parametrize("backend", ["inline", "fork", "threads", *SLOW])
@pytest.mark.parametrize("name", SAMPLERS)
def test_resume_in_epoch_1_continues_the_schedule(name, backend):
    with loader(name, **BACKENDS["threads"]) as data_loader:
        epochs_of(data_loader, 1)
        batches = iter(data_loader)
        for _ in range(3):
            next(batches)
        state = data_loader.state_dict()
    with loader(name, **BACKENDS[backend]) as data_loader:
        data_loader.load_state_dict(state)
        first, *next_epochs = epochs_of(data_loader, NUM_EPOCHS - 1)
    _, resumed_epoch, *later = expected(name)
    assert torch.equal(first, resumed_epoch[3:])
    assert all(torch.equal(actual, batches) for actual, batches in zip(next_epochs, later, strict=True))


@pytest.mark.parametrize("name", SAMPLERS)
def test_ranks_together_draw_what_one_process_draws(name):
    by_rank = []
    for rank in range(2):
        with loader(name, batch_size=BATCH // 2, rank=rank, world_size=2, **BACKENDS["threads"]) as data_loader:
            by_rank.append(epochs_of(data_loader))
    for first, second, batches in zip(*by_rank, expected(name), strict=True):
        assert torch.equal(torch.cat([first, second], dim=1), batches)


@pytest.mark.parametrize(
    "other",
    [
        ClassBalancedSampler(LABELS, exponent=LinearSchedule({0: 0.0, 3: 1.0}), num_samples=32),
        ClassBalancedSampler(LABELS, exponent=FunctionSchedule(float), num_samples=32),
        ClassBalancedSampler(LABELS, exponent=0.0, num_samples=32),
    ],
    ids=["later", "function", "constant"],
)
def test_resume_with_another_schedule_is_refused(other):
    with loader("class balanced") as data_loader:
        next(iter(data_loader))
        state = data_loader.state_dict()
    changed = DataLoader(EpochNumbers(), BATCH, sampler=other, seed=3)
    # Orders of epoch 0 are equal, so only the schedule tells them apart.
    assert other.order(seed=3, epoch=0)[:].tolist() == SAMPLERS["class balanced"]().order(seed=3, epoch=0)[:].tolist()
    with warnings.catch_warnings(action="error"), pytest.raises(ValueError, match=r"fingerprint=.* in the state"):
        changed.load_state_dict(state)


@pytest.mark.parametrize("name", SAMPLERS)
def test_length_of_a_loader_is_that_of_every_epoch(name):
    with loader(name) as data_loader:
        assert [len(batches) for batches in epochs_of(data_loader)] == [len(data_loader)] * NUM_EPOCHS
