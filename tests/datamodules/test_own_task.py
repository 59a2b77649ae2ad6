"""A task of a user's own: short, without drawing, with all that the data modules of the package have."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import LightningModule

from lit_loader.datamodules import ClassBalancedSamplerConfig
from tests.support.drawn_set import drawn_source
from tests.support.extras import needs
from tests.support.lightning_ranks import trainer
from tests.support.own_task import CountingDataModule

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        images, counts = batch
        return (self.layer(images.mean(dim=(2, 3)))[:, 0] - counts).square().mean()

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def source(tmp_path):
    return drawn_source(tmp_path)


def test_custom_task_trains_with_samplers_transforms_and_left_out_samples(source):
    datamodule = CountingDataModule(
        source,
        most=2,
        batch_size=4,
        train_sampler=ClassBalancedSamplerConfig(empty_share=0.1),
        train_transforms={"size": 8},
    )
    model = Regression()
    weight = model.layer.weight.detach().clone()
    trainer(max_steps=1, num_sanity_val_steps=0).fit(model, datamodule=datamodule)
    assert not torch.equal(model.layer.weight, weight)
    assert datamodule.first_batch("train")[0].shape == (4, 3, 8, 8)
    assert len(datamodule.train_dataset) == 18
    assert "6 left out" in datamodule.summary()
    assert (datamodule.hparams["most"], datamodule.hparams["batch_size"]) == (2, 4)


@needs("plot")
def test_drawing_is_optional(source):
    from matplotlib.figure import Figure

    datamodule = CountingDataModule(source)
    with pytest.raises(NotImplementedError, match=r"CountingDataModule cannot draw batches; define draw_batch\("):
        datamodule.plot_batch()
    datamodule.draw_batch = lambda batch, *, max_images, title: Figure(label=title)
    assert datamodule.plot_batch("val").get_label() == "val batch"
