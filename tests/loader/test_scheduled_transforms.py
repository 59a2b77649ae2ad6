"""Guarantee: samples of an epoch have its scheduled transforms, whichever worker makes them, resumed, and on any rank.

ultralytics kept mosaics on after ``close_mosaic``, in persistent workers and in resumed runs, because its workers never
heard of the change (https://github.com/ultralytics/ultralytics/issues/25762). Here a schedule that ends at epoch 2 is
compared, bit for bit, with transforms that were constructed by hand for each epoch.
"""

from __future__ import annotations

import pytest
from torch import nn
from torchvision.transforms import v2

import lit_loader
from lit_loader import DataLoader, DetectionDataset, GroupedSampler, RandomSampler, ScheduledTransform
from lit_loader.transforms import detection_transforms
from tests.support.drawn_set import draw_set
from tests.support.toys import plain

END = 2
NUM_EPOCHS = 4
BATCH_SIZE = 4
SIZES = [32, 48, 64]
WORKERS = {
    "inline": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "persistent": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4},
    "persistent threads": {"num_workers": 2, "worker_method": "thread", "persistent_workers": True},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return draw_set(tmp_path_factory.mktemp("drawn"))


def scheduled_transforms():
    invert = ScheduledTransform(v2.RandomInvert(p=0.5), epochs=[0, END])
    return detection_transforms(
        True,
        photometric={"epochs": [0, END], "value": 1.0},
        hflip={"points": {0: 1.0, END: 0.0}},
        rotation={"points": {0: 10, END: 0}},
        size={"points": {0: 32, END: 64}, "step": 16},
        extra_after=[invert],
    )


def transforms_by_hand(epoch):
    if epoch >= END:
        return detection_transforms(True, hflip=0.0, size=64)
    settings = {"hflip": 1 - epoch / END, "rotation": 10 - 10 * epoch / END, "size": [32, 48][epoch]}
    return detection_transforms(True, photometric=1.0, extra_after=[v2.RandomInvert(p=0.5)], **settings)


def make_loader(table, transforms, **arguments):
    dataset = DetectionDataset(table, transforms=transforms)
    settings = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 7, "collate_fn": list}
    return DataLoader(dataset, **{**settings, **arguments})


def epoch_by_hand(table, epoch, **arguments):
    loader = make_loader(table, transforms_by_hand(epoch), **arguments)
    loader.set_epoch(epoch)
    return [plain(batch) for batch in loader]


@pytest.fixture(scope="module")
def by_hand(table):
    return [epoch_by_hand(table, epoch) for epoch in range(NUM_EPOCHS)]


# The fork server pickles the data set as spawn does; its processes start sooner.
EVERY_METHOD = [pytest.param(name, marks=pytest.mark.soak if name == "spawn" else ()) for name in WORKERS]


@pytest.mark.parametrize("workers", EVERY_METHOD)
def test_schedule_ends_at_its_epoch_in_every_worker(table, by_hand, workers):
    """ultralytics#25762: also in workers that persist, and that prepare the next epoch ahead."""
    with make_loader(table, scheduled_transforms(), **WORKERS[workers]) as loader:
        for epoch in range(NUM_EPOCHS):
            assert [plain(batch) for batch in loader] == by_hand[epoch]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("epoch", "num_batches"), [(1, 0), (1, 2), (END, 0), (END, 1)])
def test_schedule_ends_after_a_resume(table, by_hand, epoch, num_batches, num_workers):
    """ultralytics#25762: a run that is resumed at the start of an epoch or within it, before or after the end."""
    with make_loader(table, scheduled_transforms()) as first:
        for _ in range(epoch):
            list(first)
        iterator = iter(first)
        for _ in range(num_batches):
            next(iterator)
        state = first.state_dict()
    with make_loader(
        table, scheduled_transforms(), num_workers=num_workers, persistent_workers=num_workers > 0
    ) as loader:
        loader.load_state_dict(state)
        batches = [plain(batch) for batch in loader]
        # A state between two epochs may resume after the last batch of the first one.
        batches = batches or [plain(batch) for batch in loader]
        assert batches == by_hand[epoch][num_batches:]
        assert [plain(batch) for batch in loader] == by_hand[epoch + 1]


def test_schedule_is_the_same_on_all_ranks(table, by_hand):
    ranks = [
        make_loader(table, scheduled_transforms(), batch_size=BATCH_SIZE // 2, num_workers=1, rank=rank, world_size=2)
        for rank in range(2)
    ]
    for epoch in range(NUM_EPOCHS):
        for expected, *parts in zip(by_hand[epoch], *ranks, strict=True):
            assert plain([*parts[0], *parts[1]]) == expected
    for loader in ranks:
        loader.close()


def sizes_of(loader, num_epochs=2):
    """Return the sizes of the images of each batch."""
    return [{tuple(image.shape[-2:]) for image, _ in batch} for _ in range(num_epochs) for batch in loader]


def size_transforms():
    return detection_transforms(True, size={"choices": [[size, size] for size in SIZES]})


@pytest.mark.parametrize("grouped", [False, True])
def test_batch_size_choice_is_one_for_each_global_batch(table, grouped):
    def loader(**arguments):
        sampler = RandomSampler(table.num_images)
        sampler = GroupedSampler(sampler, [index % 3 for index in range(table.num_images)]) if grouped else sampler
        return make_loader(table, size_transforms(), shuffle=None, sampler=sampler, **arguments)

    sizes = sizes_of(loader(batch_size=2), num_epochs=4)
    assert all(len(batch_sizes) == 1 for batch_sizes in sizes)
    assert set.union(*sizes) == {(size, size) for size in SIZES}
    for workers in ("persistent", "threads"):
        with loader(batch_size=2, **WORKERS[workers]) as in_workers:
            assert sizes_of(in_workers, num_epochs=4) == sizes
    ranks = [sizes_of(loader(batch_size=1, rank=rank, world_size=2), num_epochs=4) for rank in range(2)]
    assert ranks == [sizes, sizes]


class Brighten(nn.Module):
    """A user's transform that asks for the epoch."""

    def forward(self, image, target):
        return image // (1 + lit_loader.current_epoch()), target


@pytest.mark.parametrize("workers", ["inline", "threads", "persistent"])
def test_transform_of_the_user_knows_the_epoch(table, workers):
    with make_loader(table, Brighten(), shuffle=False, **WORKERS[workers]) as loader:
        means = [sum(float(image.float().mean()) for batch in loader for image, _ in batch) for _ in range(3)]
    assert means[0] > 1.5 * means[1] > 1.5 * means[2] > 0


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("transforms", [scheduled_transforms, size_transforms, Brighten])
def test_loader_without_a_seed_is_refused_with_the_remedy(table, transforms, num_workers):
    loader = make_loader(table, transforms(), seed=None, num_workers=num_workers)
    with loader, pytest.raises(RuntimeError, match="pass a seed to the loader"):
        next(iter(loader))


def test_unscheduled_data_set_needs_no_epoch(table):
    assert len(DetectionDataset(table, transforms=detection_transforms(True, size=32))[0]) == 2
