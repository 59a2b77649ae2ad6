"""Runs with `ReweightClasses`: a small data set, and a module that records its batches."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer

from lit_loader import DetectionDataModule
from lit_loader.annotations import image_weights
from lit_loader.datamodules import WeightedSamplerConfig
from lit_loader.datasets import ShapesSource
from lit_loader.samplers import WeightedRandomSampler
from tests.support.lightning_ranks import QUIET


def three_classes(cache_dir):
    """Return 24 training images, of classes that are common, less common and rare."""
    source = ShapesSource(
        num_images={"train": 24, "val": 4, "test": 4},
        image_size=32,
        class_shares=(0.7, 0.2, 0.1),
        cache_dir=str(cache_dir),
        progress=False,
    )
    source.prepare()
    return source


class Recording(LightningModule):
    """Records the image ids and the validations of each epoch."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = {}
        self.validated = []

    def training_step(self, batch, batch_idx):
        ids = [target["image_id"] for target in batch[1]]
        self.seen.setdefault(self.current_epoch, []).extend(int(number) for number in ids)
        return self.weight.sum()

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.validated.append(self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


ANSWERS = [[1.0, 5.0, 0.0], None, torch.tensor([0.0, 1.0, 1.0])]


class Asked:
    """Returns `ANSWERS` in turn, and records the epochs of the calls."""

    def __init__(self):
        self.epochs = []

    def __call__(self, trainer, pl_module):
        assert isinstance(trainer, Trainer)
        assert trainer.current_epoch in pl_module.validated  # the epoch's validation has run
        self.epochs.append(trainer.current_epoch)
        return ANSWERS[trainer.current_epoch % len(ANSWERS)]


def data_of(shapes, **settings):
    chosen = {"train_sampler": WeightedSamplerConfig(), "batch_size": 4, "seed": 3, **settings}
    return DetectionDataModule(shapes, **chosen)


def trainer_of(tmp_path, *callbacks, **settings):
    settings = {"max_epochs": 4, "log_every_n_steps": 1, "callbacks": list(callbacks)} | settings
    return Trainer(default_root_dir=tmp_path, **QUIET | settings)


def fit(tmp_path, shapes, callback, *, ckpt_path=None, data=None, callbacks=(), **settings):
    module = Recording()
    data = data or data_of(shapes)
    trainer_of(tmp_path, callback, *callbacks, **settings).fit(module, data, ckpt_path=ckpt_path)
    return module


def expected_epochs(shapes, by_epoch):
    """Return the images of each epoch, drawn with the class weights of that epoch."""
    data = data_of(shapes)
    data.setup("fit")
    (table,) = data.tables("train")
    loader = data.train_dataloader()
    order_by_epoch = {}
    for epoch, classes in enumerate(by_epoch):
        sampler = loader.sampler
        if classes is not None:
            sampler = WeightedRandomSampler(image_weights(table, classes))
        order_by_epoch[epoch] = sampler.order(seed=loader.seed, epoch=epoch)[:].tolist()
    return order_by_epoch
