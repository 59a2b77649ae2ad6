"""Lightning has two names, ``lightning.pytorch`` and ``pytorch_lightning``, with classes of their own."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from lit_loader import DataLoader, DatasetsDataModule
from tests.support.in_threads import Calls
from tests.support.lightning_ranks import QUIET

SETTINGS = {**QUIET, "max_epochs": 2}


# A random number for each index.
DRAWS = Calls(lambda index: (torch.tensor([float(index)]), torch.rand(1)), 32)


def run(package, data_module, checkpoint, *, resumes=False):
    """Train with the classes of a package; return the batches, and save a checkpoint after batch 2 of epoch 1."""
    lightning = import_module(package)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.batches = []

        def training_step(self, batch, batch_idx):
            self.batches.append([part.flatten().tolist() for part in batch])
            return self.layer(batch[0]).sum()

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if not resumes and (self.current_epoch, batch_idx) == (1, 2):
                self.trainer.save_checkpoint(checkpoint)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.0)

    module = Module()
    lightning.Trainer(**SETTINGS).fit(module, datamodule=data_module, ckpt_path=checkpoint if resumes else None)
    return module.batches


def users_data_module(package):
    class DataModule(import_module(package).LightningDataModule):
        def train_dataloader(self):
            return DataLoader(DRAWS, batch_size=4, shuffle=True, seed=1)

    return DataModule()


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_users_data_module_of_either_package_resumes_in_mid_epoch(package, tmp_path):
    pytest.importorskip(package)
    batches = run(package, users_data_module(package), tmp_path / "a.ckpt")
    resumed = run(package, users_data_module(package), tmp_path / "a.ckpt", resumes=True)
    assert len(batches) == 16
    assert resumed == batches[11:]


def test_a_trainer_of_the_other_package_is_refused_with_the_remedy(tmp_path):
    pytest.importorskip("pytorch_lightning")
    data_module = DatasetsDataModule(train_dataset=DRAWS, batch_size=4, num_workers=0)
    with pytest.raises(TypeError, match=r"import Trainer and LightningModule from lightning\.pytorch"):
        run("pytorch_lightning", data_module, tmp_path / "a.ckpt")
