"""Training runs that are stopped and gone on with; their final weights depend on every batch's bits and order."""

from __future__ import annotations

import torch
from lightning.pytorch import Callback, LightningModule

from lit_loader import DataLoader
from tests.support.lightning_ranks import trainer
from tests.support.resume_sets import BATCH, Numbers


def loader(**arguments):
    """Return a training loader of 7 batches with draws in every sample."""
    return DataLoader(Numbers(), **{"batch_size": BATCH, "shuffle": True, "seed": 3, **arguments})


class Learner(LightningModule):
    """A module that records the batches that it was trained on; its weights depend on all of them.

    Args:
        make: Makes what its ``train_dataloader`` returns; None: a data module has it.
        make_val: The same of ``val_dataloader``.
        ask: Whether ``configure_optimizers`` asks how many steps there will be, which makes the training loader early.
    """

    def __init__(self, make=None, make_val=None, *, ask=False):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1, dtype=torch.float64)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)
        self.make = make
        self.make_val = make_val
        self.ask = ask
        self.seen = []

    def train_dataloader(self):
        return self.make()

    def val_dataloader(self):
        return self.make_val()

    def training_step(self, batch, batch_idx):
        rows = torch.cat([rows for rows in rows_of(batch) if rows is not None])
        self.seen.append(rows.clone())
        return (self.layer(rows / 10) - 1).tanh().square().mean()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        if self.ask:
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def rows_of(batch):
    """Return the samples of a batch as rows of three numbers, in parts."""
    if isinstance(batch, dict):
        return list(batch.values())
    if isinstance(batch, torch.Tensor):
        return [batch]
    images, targets = batch
    rows = [
        [image.double().mean(), image.double().std(), float(target["image_id"])]
        for image, target in zip(images, targets, strict=True)
    ]
    return [torch.tensor(rows, dtype=torch.float64)]


class Save(Callback):
    """Saves a checkpoint whenever Lightning calls a hook, as a user's own callback does.

    Attributes:
        saved: For each checkpoint, how many batches the model had got, and its file.
    """

    def __init__(self, folder, hook="on_train_batch_end"):
        self.folder = folder
        self.saved = []
        setattr(self, hook, self._save)

    def _save(self, trainer, pl_module, *_):
        if trainer.sanity_checking:
            return
        path = self.folder / f"{len(self.saved)}.ckpt"
        trainer.save_checkpoint(path)
        self.saved.append((len(pl_module.seen), path))


def fitted(model, *, ckpt_path=None, callbacks=(), datamodule=None, **arguments):
    """Return the model, trained by a Trainer of its own."""
    settings = {"max_epochs": 3, "num_sanity_val_steps": 0, "callbacks": list(callbacks), **arguments}
    if model.make_val is None:
        settings["limit_val_batches"] = 0
    trainer(**settings).fit(model, datamodule=datamodule, ckpt_path=ckpt_path)
    return model


def assert_same(resumed, unbroken, num_seen=None, *, weights=True):
    """Compare a resumed run with an unbroken one.

    Args:
        resumed: Its model.
        unbroken: The unbroken run's.
        num_seen: How many batches had been seen when the checkpoint was saved; None: not known.
        weights: Whether the final weights must also be equal.
    """
    start = len(unbroken.seen) - len(resumed.seen) if num_seen is None else num_seen
    expected = unbroken.seen[start:]
    assert len(resumed.seen) == len(expected)
    assert all(torch.equal(mine, other) for mine, other in zip(resumed.seen, expected, strict=True))
    if weights:
        mine = resumed.state_dict()
        expected_weights = unbroken.state_dict()
        assert all(torch.equal(mine[name], expected_weights[name]) for name in expected_weights)
