"""Mixing that ends within a run of Lightning ends in every worker: with workers that persist, resumed, and on ranks.

ultralytics kept mosaics on in workers that had started before ``close_mosaic``, and in a run that was resumed after it
(https://github.com/ultralytics/ultralytics/issues/25762); its ``seed`` did not reach the augmentation in workers
(https://github.com/ultralytics/ultralytics/issues/25815). Here a run with mixes in epochs 0 and 1 is compared, batch by
batch, with the same run without mixes.
"""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from lightning.pytorch import LightningModule

from lit_loader import (
    AspectRatioBatching,
    CopyPaste,
    DetectionDataModule,
    EpochRange,
    MixedSource,
    Mosaic,
    MultiTaskDataModule,
)
from lit_loader.collate import batch_images, batch_targets
from lit_loader.datamodules import ClassBalancedSamplerConfig, WorkerSettings
from tests.datasets.test_masks import draw_polygons
from tests.support.drawn_set import DrawnSource, draw_set, drawn_source
from tests.support.lightning_ranks import on_ranks, trainer
from tests.support.lightning_resuming import Save, fitted

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*has shuffling enabled"),
]

NUM_BATCHES = 6
END = 2  # first epoch without mixing
MAX_EPOCHS = 4
TRANSFORMS = {"photometric": 0.5, "size": 48}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return drawn_source(tmp_path_factory.mktemp("drawn"))


class Digests(LightningModule):
    """A model of one weight that records a digest of the pixels, boxes and labels of each training sample."""

    make_val = None

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        pairs = zip(batch_images(batch), batch_targets(batch), strict=True)
        self.seen.append([digest(image, target) for image, target in pairs])
        return self.weight.sum()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def digest(image, target):
    parts = [image, target["boxes"], target["labels"]]
    return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()


def mixes():
    return {"mosaic": Mosaic(p=EpochRange([0, END])), "paste": CopyPaste(p=EpochRange([0, END]), num_objects=2)}


def run(source, mixing, *, kind=DetectionDataModule, callbacks=(), ckpt_path=None, **settings):
    """Return the digests of a run, by batch."""
    arguments = {"batch_size": 24 // NUM_BATCHES, "seed": 5, "train_transforms": TRANSFORMS, **settings}
    datamodule = kind(source, mixing=mixing, **arguments)
    model = fitted(Digests(), datamodule=datamodule, callbacks=callbacks, ckpt_path=ckpt_path, max_epochs=MAX_EPOCHS)
    return model.seen


@pytest.fixture(scope="module")
def plain(source):
    return run(source, None)


@pytest.fixture(scope="module")
def mixed(source):
    return run(source, mixes())


def check_end(seen, plain):
    """Check that all batches of the first epochs are mixed, and that later ones have the bits of a run without."""
    assert len(seen) == len(plain) == NUM_BATCHES * MAX_EPOCHS
    end = NUM_BATCHES * END
    assert seen[end:] == plain[end:]
    mixed_samples = {sample for batch in seen[:end] for sample in batch}
    assert not mixed_samples & {sample for batch in plain[:end] for sample in batch}


# tests/loader/test_scheduled_transforms.py has a schedule that ends in processes of a fork server.
WORKERS = [
    {},
    {"worker_method": "thread"},
    pytest.param({"multiprocessing_context": "forkserver"}, marks=pytest.mark.soak),
]


@pytest.mark.parametrize("workers", WORKERS)
def test_mixing_ends_with_persistent_workers_and_prepared_epochs(source, plain, mixed, workers):
    """ultralytics#25762: workers that persist, and that work on the next epoch before this one ends."""
    settings = WorkerSettings(num_workers=2, persistent_workers=True, prefetch_factor=4, **workers)
    seen = run(source, mixes(), workers=settings)
    check_end(seen, plain)
    assert seen == mixed


def test_mixing_ends_after_a_resume(source, plain, tmp_path):
    """ultralytics#25762: a run that is resumed after mixing ended, before it ended, and in mid-epoch."""
    save = Save(tmp_path)
    unbroken = run(source, mixes(), callbacks=[save])
    check_end(unbroken, plain)
    checkpoints = dict(save.saved)
    # Within epoch 1, after it, and within the first epoch without mixing.
    for num_seen in (NUM_BATCHES + 2, END * NUM_BATCHES, END * NUM_BATCHES + 1):
        workers = WorkerSettings(num_workers=2, persistent_workers=True)
        assert run(source, mixes(), ckpt_path=checkpoints[num_seen], workers=workers) == unbroken[num_seen:]


def test_mixing_ends_on_every_rank(source, plain, mixed, tmp_path):
    on_ranks(2, tmp_path, _record, source, tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    seen = [[*first, *second] for first, second in zip(*ranks, strict=True)]
    check_end(seen, plain)
    assert seen == mixed


def _record(source, folder):
    datamodule = DetectionDataModule(
        source, mixing=mixes(), batch_size=24 // NUM_BATCHES // 2, seed=5, train_transforms=TRANSFORMS, num_workers=1
    )
    model = Digests()
    runner = trainer(max_epochs=MAX_EPOCHS, num_sanity_val_steps=0, limit_val_batches=0)
    runner.fit(model, datamodule=datamodule)
    (folder / f"{runner.global_rank}.json").write_text(json.dumps(model.seen))


def test_seed_reaches_mixing_in_workers(source):
    """ultralytics#25815: partners and draws follow the seed, and no number of workers changes them."""
    in_process = run(source, mixes(), seed=6)
    assert run(source, mixes(), seed=6, num_workers=2) == in_process
    other = run(source, mixes(), seed=7, num_workers=2)
    mixed_samples = [
        {sample for batch in seen[: END * NUM_BATCHES] for sample in batch} for seen in (in_process, other)
    ]
    assert not mixed_samples[0] & mixed_samples[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": MultiTaskDataModule},
        pytest.param({"train_sampler": ClassBalancedSamplerConfig(num_samples=24)}, marks=pytest.mark.soak),
        {"tiling": {"size": 40, "stages": ["train"]}, "train_sampler": ClassBalancedSamplerConfig(num_samples=24)},
        {"reading": {"decode": "fast"}},
    ],
    ids=["multi-task", "class balanced", "tiles", "fast"],
)
def test_mixing_ends_with_other_settings(source, settings):
    check_end(run(source, mixes(), num_workers=2, **settings), run(source, None, **settings))


def joined(folder):
    tables = {name: draw_set(folder / name, seed=seed) for seed, name in enumerate("ab")}
    # Objects of a class may be visible in the images without being annotated.
    tables = {name: table.with_unlabelled_classes(["pointless"]) for name, table in tables.items()}
    val = draw_set(folder / "val", num_images=4)
    return MixedSource({name: DrawnSource(train=table, val=val) for name, table in tables.items()})


SOURCES = {
    "masks": (
        lambda folder: DrawnSource(train=draw_polygons(folder, num_images=24), val=draw_polygons(folder, num_images=4)),
        {"masks": True, "train_transforms": {"photometric": 0.5}},
    ),
    "joined": (joined, {}),
    "batching": (drawn_source, {"train_batching": AspectRatioBatching(num_buckets=2)}),
}


@pytest.mark.parametrize("name", SOURCES)
def test_mixing_ends_with_other_data(tmp_path, name):
    make, settings = SOURCES[name]
    source = make(tmp_path)
    check_end(run(source, mixes(), num_workers=2, **settings), run(source, None, **settings))


def test_mixing_ends_with_a_cache(source, plain, tmp_path):
    check_end(run(source, mixes(), cache=True, cache_dir=tmp_path), plain)
