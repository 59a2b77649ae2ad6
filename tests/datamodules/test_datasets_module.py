"""A data module over the user's data sets has the loader, the seed and the workers."""

from __future__ import annotations

from functools import partial
from itertools import chain

import pytest

from lit_loader import DatasetsDataModule, DetectionDataModule
from lit_loader.loader import DataLoader
from lit_loader.samplers import WeightedRandomSampler
from tests.support.lightning_ranks import trainer as lightning_trainer
from tests.support.recording_model import RecordingModel
from tests.support.toys import Drawing, Stream

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


trainer = partial(lightning_trainer, max_epochs=2, num_sanity_val_steps=0)


def seeing():
    return RecordingModel(lambda batch: batch["index"].tolist())


@pytest.mark.parametrize("make", [DatasetsDataModule, DatasetsDataModule.from_datasets])
def test_every_stage_runs(make):
    datamodule = make(
        train_dataset=Drawing(9),
        val_dataset=[Drawing(2), Drawing(3)],
        test_dataset=Drawing(5),
        predict_dataset=Drawing(4),
        batch_size=4,
        seed=1,
    )
    model = seeing()
    trainer(log_every_n_steps=1).fit(model, datamodule=datamodule)
    flat = list(chain.from_iterable(model.seen["train"]))
    assert sorted(flat[:9]) == sorted(flat[9:]) == list(range(9))
    assert flat[:9] != flat[9:]
    assert model.seen["val"] == 2 * [[0, 1], [0, 1, 2]]
    trainer().test(model, datamodule=datamodule, verbose=False)
    trainer().predict(model, datamodule=datamodule, return_predictions=False)
    assert model.seen["test"] == [[0, 1, 2, 3], [4]]
    assert model.seen["predict"] == [[0, 1, 2, 3]]


def test_training_alone_needs_nothing_else_and_takes_a_sampler():
    model = seeing()
    weights = [0.0] * 8 + [1.0]
    datamodule = DatasetsDataModule(
        train_dataset=Drawing(9), train_sampler=WeightedRandomSampler(weights), batch_size=3
    )
    trainer(log_every_n_steps=1, limit_val_batches=0).fit(model, datamodule=datamodule)
    assert model.seen["train"] == 6 * [[8, 8, 8]]


def test_a_stream_and_a_collate_function():
    datamodule = DatasetsDataModule(train_dataset=Stream(6), collate_fn=list, batch_size=3, seed=0)
    datamodule.setup("fit")
    loader = datamodule.train_dataloader()
    assert isinstance(loader, DataLoader)
    assert [[sample["count"] for sample in batch] for batch in loader] == [[0, 1, 2], [3, 4, 5]]


def test_arguments_without_effect_are_refused():
    with pytest.raises(ValueError, match="train_sampler=WeightedRandomSampler has no effect on an iterable"):
        DatasetsDataModule(train_dataset=Stream(6), train_sampler=WeightedRandomSampler([1.0]))
    message = (
        r"val_dataset=\[0, 1, [\d, ]{73}\.\.\. of type list should be Dataset.*; a list is taken for several data sets"
    )
    with pytest.raises(TypeError, match=message):
        DatasetsDataModule(val_dataset=list(range(501)))
    with pytest.raises(TypeError, match="test_dataset is a dict"):
        DatasetsDataModule(test_dataset={"one": Drawing(3)})
    with pytest.raises(TypeError, match=r"DetectionDataModule\.from_datasets would make torch's loaders"):
        DetectionDataModule.from_datasets(Drawing(3))
