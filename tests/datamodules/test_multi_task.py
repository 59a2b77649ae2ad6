"""The data module for several tasks: boxes, classes, points and attributes of one set."""

from __future__ import annotations

import pytest

from lit_loader.annotations import Attribute
from lit_loader.collate import MultiTaskBatch
from lit_loader.datamodules import ClassBalancedSamplerConfig, MultiTaskDataModule
from tests.support.drawn_set import CLASSES, FINISHES, POINTS, DrawnSource, draw_set, drawn_source


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return drawn_source(tmp_path_factory.mktemp("drawn"))


def test_a_batch_holds_everything_with_its_masks(source):
    datamodule = MultiTaskDataModule(source, batch_size=8)
    batch = datamodule.first_batch("test")
    (table,) = source.tables("test")
    assert isinstance(batch, MultiTaskBatch)
    assert batch.images.shape == (8, 3, 48, 64)
    assert batch.object_mask.sum(dim=1).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert (batch.labels[batch.object_mask] - 1).tolist() == table.labels.tolist()
    ids = table.attributes["finish"].ids
    assert batch.attributes["finish"][batch.object_mask].tolist() == ids.tolist()
    assert batch.attribute_masks["finish"][batch.object_mask].tolist() == (ids >= 0).tolist()
    assert batch.keypoint_mask[batch.object_mask].tolist() == (table.visibility > 0).tolist()
    assert (datamodule.class_names, datamodule.attributes) == (CLASSES, {"finish": FINISHES})
    assert datamodule.keypoint_schema.names == POINTS


def test_marks_lie_where_the_points_say_after_augmentation(source):
    settings = {"hflip": 0.5, "size": 96}
    datamodule = MultiTaskDataModule(source, batch_size=8, train_transforms=settings)
    checked = 0
    with datamodule.train_dataloader() as loader:
        for batch in loader:
            for i, n, k in batch.keypoint_mask.nonzero().tolist():
                x, y = batch.keypoints[i, n, k].int().tolist()
                assert batch.images[i, :, y, x].min() > 0.9
                left_x = batch.keypoints[i, n, 0, 0]
                right_x = batch.keypoints[i, n, 1, 0]
                assert left_x < right_x  # the pair was swapped in a flip
                checked += 1
    assert checked > 50


def test_points_and_attributes_may_be_left_out(source):
    datamodule = MultiTaskDataModule(source, keypoints=False, attributes=(), batch_size=4)
    batch = datamodule.first_batch("val")
    assert batch.keypoints.shape[2:] == (0, 2)
    assert batch.attributes == datamodule.attributes == {}
    assert datamodule.keypoint_schema is None
    assert {summary.label for summary in datamodule.summaries()} == {"class"}


def test_the_first_label_and_the_padding_are_passed_on(source):
    datamodule = MultiTaskDataModule(source, batch_size=4, first_label=0, size_divisor=32, pad_value=0.5)
    batch = datamodule.first_batch("val")
    assert batch.labels[batch.object_mask].min() == 0
    assert batch.images.shape == (4, 3, 64, 64)
    assert (batch.images[:, :, 48:] == 0.5).all()


def test_the_summary_has_the_class_and_every_attribute(source):
    datamodule = MultiTaskDataModule(source, train_sampler=ClassBalancedSamplerConfig(balance_by="finish"))
    summaries = datamodule.summaries()
    assert [(summary.name, summary.label) for summary in summaries[:2]] == [("train", "class"), ("train", "finish")]
    text = datamodule.summary()
    for part in (*CLASSES, *FINISHES, f"finish, {summaries[1].imbalance:.0f} : 1"):
        assert part in text


def test_ids_that_mean_different_things_are_refused(tmp_path):
    train = draw_set(tmp_path / "a")
    val = draw_set(tmp_path / "b", class_names=("rare", "common", "pointless"))
    with pytest.raises(ValueError, match="class_names differ between the sets of the source"):
        MultiTaskDataModule(DrawnSource(train=train, val=val)).setup("fit")
    shuffled = Attribute(ids=train.attributes["finish"].ids, names=FINISHES[::-1])
    val = draw_set(tmp_path / "c", attributes={"finish": shuffled})
    with pytest.raises(ValueError, match="values of the attribute 'finish' differ"):
        MultiTaskDataModule(DrawnSource(train=train, val=val)).setup("fit")
    MultiTaskDataModule(DrawnSource(train=train, val=val), attributes=()).setup("fit")
    val = draw_set(tmp_path / "d", keypoint_names=("right", "left", "middle"))
    with pytest.raises(ValueError, match="keypoint_names differ"):
        MultiTaskDataModule(DrawnSource(train=train, val=val)).setup("fit")
    MultiTaskDataModule(DrawnSource(train=train, val=val), keypoints=False).setup("fit")


def test_a_set_without_points_is_refused_when_points_are_asked_for(tmp_path):
    bare = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}
    source = DrawnSource(train=draw_set(tmp_path, **bare))
    with pytest.raises(ValueError, match="keypoints=True but no object"):
        MultiTaskDataModule(source).train_dataloader()
    assert MultiTaskDataModule(source, keypoints=False).first_batch("train").keypoints.shape[2] == 0
