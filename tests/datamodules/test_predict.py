"""Guarantee: prediction gets every image, or every object, whatever is known of it, for every task."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.annotations import Attribute
from lit_loader.collate import ClassificationBatch, LandmarkBatch, MultiTaskBatch, batch_images
from lit_loader.datamodules import ClassificationDataModule, LandmarkDataModule, MultiTaskDataModule
from tests.datamodules.test_every_task import TASKS, every_task, make
from tests.support.drawn_set import CLASSES, FINISHES, DrawnSource, draw_set
from tests.support.lightning_ranks import trainer
from tests.support.recording_model import RecordingModel

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")

BARE = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": (), "attributes": {}}
OBJECTS = ("landmarks", "classification", "classification by")


@pytest.fixture
def train(tmp_path):
    return draw_set(tmp_path / "train")


@pytest.fixture
def bare(tmp_path):
    """Eight images with 0 to 3 objects that have only boxes."""
    return draw_set(tmp_path / "new", num_images=8, seed=5, class_names=CLASSES[:1], labels=[0] * 12, **BARE)


def batches(datamodule):
    with datamodule.predict_dataloader() as loader:
        return list(loader)


def predicted(datamodule):
    model = RecordingModel(lambda batch: len(batch_images(batch)))
    trainer().predict(model, datamodule=datamodule)
    return sum(model.seen["predict"])


@pytest.mark.parametrize("stage", ["test", "predict"])
def test_testing_and_predicting_without_data_raise(train, stage):
    datamodule = ClassificationDataModule(DrawnSource(train=train), batch_size=2, sample_unit="object")
    with pytest.raises(ValueError, match=rf"has nothing to {stage} on; give it by {stage}= of the source"):
        getattr(trainer(), stage)(RecordingModel(len), datamodule=datamodule)


@every_task
@pytest.mark.parametrize("trained", [True, False], ids=["beside a training set", "alone"])
def test_images_with_boxes_alone_are_all_predicted(train, bare, task, trained):
    sets = {"train": train} if trained else {}
    settings = {} if trained or "landmarks" not in task else {"attributes": ()}
    datamodule = make(DrawnSource(**sets, predict=bare), task, **settings)
    assert predicted(datamodule) == (bare.num_objects if task in OBJECTS else bare.num_images)
    assert datamodule.plot_batch("predict", max_images=2).axes
    if trained:
        assert datamodule.class_names == (FINISHES if TASKS[task][1].get("label_attribute") else CLASSES)


@every_task
def test_images_without_any_object_are_predicted_whole(tmp_path, train, task):
    empty = draw_set(tmp_path / "empty", num_images=5, objects=0)
    datamodule = make(DrawnSource(train=train, predict=[empty, empty.select([1])]), task)
    lengths = [len(loader.dataset) for loader in datamodule.predict_dataloader()]
    assert lengths == ([0, 0] if task in OBJECTS else [5, 1])


@every_task
def test_other_stages_leave_out_unusable_samples(train, task):
    source = DrawnSource(train=train, val=train, test=train, predict=train)
    datamodule = make(source, task)
    sizes = [datamodule.tables(stage)[0].num_images for stage in ("train", "val", "test", "predict")]
    assert sizes[0] == sizes[1] == sizes[2] <= sizes[3]
    assert (sizes[2] < sizes[3]) == (task in ("landmarks", "landmarks of images", "classification by"))


def test_unknown_labels_points_and_attributes_are_marked(train, bare):
    source = DrawnSource(train=train, predict=bare)
    for batch in batches(ClassificationDataModule(source, label_attribute="finish", sample_unit="object")):
        assert isinstance(batch, ClassificationBatch)
        assert (batch.labels == -1).all()
    for batch in batches(ClassificationDataModule(source, label_attribute="finish", multi_label=True)):
        assert batch.labels.shape[1] == len(FINISHES)
        assert not batch.labels.any()
    for batch in batches(LandmarkDataModule(source, attributes="all")):
        assert isinstance(batch, LandmarkBatch)
        assert batch.keypoints.shape[1:] == (3, 2)
        assert not batch.mask.any()
        assert (batch.attributes["finish"] == -1).all()
    for batch in batches(MultiTaskDataModule(source)):
        assert isinstance(batch, MultiTaskBatch)
        assert not batch.keypoint_mask.any()
        assert not batch.attribute_masks["finish"].any()
        assert batch.labels[batch.object_mask].unique().tolist() == [1]
    alone = DrawnSource(predict=bare)
    assert {batch.keypoints.shape[1:] for batch in batches(LandmarkDataModule(alone))} == {(0, 2)}
    assert {batch.visibility.shape[2:] for batch in batches(MultiTaskDataModule(alone))} == {(0,)}


def test_an_image_with_several_labels_is_predicted_without_one(train):
    datamodule = ClassificationDataModule(DrawnSource(predict=train), batch_size=12)
    (batch,) = batches(datamodule)
    several = [len(set(train.labels[train.objects(i)].tolist())) != 1 for i in range(12)]
    assert (batch.labels == -1).tolist() == several
    assert 0 < sum(several) < 12


def test_values_of_the_attribute_that_labels_must_be_numbered_alike(tmp_path, train):
    ids = np.zeros(train.num_objects, dtype=np.int64)
    names = tuple(reversed(FINISHES))
    other = draw_set(tmp_path / "other", attributes={"finish": Attribute(ids=ids, names=names)})
    datamodule = ClassificationDataModule(
        DrawnSource(train=train, val=other), label_attribute="finish", sample_unit="object"
    )
    with pytest.raises(ValueError, match=r"labels differ between the sets .*'plain'.* for val \('hollow'"):
        datamodule.setup("fit")
