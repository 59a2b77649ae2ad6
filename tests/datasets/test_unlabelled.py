"""Classes that a table does not label reach every batch: as a field of targets, and as -1 among several labels."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils.data import ConcatDataset

from lit_loader import DataLoader
from lit_loader.collate import ClassificationCollate, DetectionCollate, MultiTaskCollate, batch_labels, batch_targets
from lit_loader.datamodules import label_texts
from lit_loader.datasets import ClassificationDataset, DetectionDataset, LandmarkDataset
from lit_loader.images import CacheSettings
from lit_loader.loader.device import moved
from lit_loader.transforms import AlbumentationsTransform, SanitizeObjects, detection_transforms, landmark_transforms
from tests.support.drawn_set import CLASSES, draw_set
from tests.support.no_sync import META, NoSync

UNLABELLED = (CLASSES[2], CLASSES[0])
LABELS = [1, 3]


@pytest.fixture
def labelled(tmp_path):
    return draw_set(tmp_path / "labelled", num_images=8)


@pytest.fixture
def table(tmp_path):
    return draw_set(tmp_path / "partly", num_images=8, seed=1).with_unlabelled_classes(UNLABELLED)


def test_targets_have_labels_of_unlabelled_classes_only_if_there_are_some(table, labelled):
    assert "unlabelled" not in DetectionDataset(labelled)[1][1]
    target = DetectionDataset(table)[0][1]  # an image without objects
    assert (target["unlabelled"].tolist(), target["unlabelled"].dtype) == (LABELS, torch.int64)
    assert DetectionDataset(table, first_label=0)[3][1]["unlabelled"].tolist() == [0, 2]
    copied = pickle.loads(pickle.dumps(DetectionDataset(table)))
    assert copied[1][1]["unlabelled"].tolist() == LABELS


def test_samples_share_no_memory(table):
    dataset = DetectionDataset(table)
    dataset[0][1]["unlabelled"][:] = 9
    assert dataset[0][1]["unlabelled"].tolist() == LABELS


def albumentations_transform():
    albumentations = pytest.importorskip("albumentations")
    boxes = albumentations.BboxParams("pascal_voc", label_fields=["rows"])
    points = albumentations.KeypointParams("xy", remove_invisible=False)
    pipeline = [albumentations.RandomCrop(24, 24), albumentations.HorizontalFlip(p=1)]
    compose = albumentations.Compose(pipeline, bbox_params=boxes, keypoint_params=points)
    return AlbumentationsTransform(compose, flip_pairs=[(0, 1)])


TRANSFORMS = {
    "preset": lambda: detection_transforms(
        True, size=(40, 40), hflip=1.0, zoom_out=1.0, iou_crop=1.0, rotation=20, photometric=1.0, flip_pairs=[(0, 1)]
    ),
    "letterbox": lambda: detection_transforms(False, size=(40, 60), letterbox=True),
    "sanitize": lambda: SanitizeObjects(min_size=17),
    "albumentations": albumentations_transform,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_field_survives_transforms_whatever_the_number_of_objects(table, name):
    # Images have 0 to 3 objects, so one has as many objects as there are unlabelled classes.
    dataset = DetectionDataset(table, keypoints=True, transforms=TRANSFORMS[name]())
    samples = [dataset[i][1] for i in range(len(dataset))]
    assert [target["unlabelled"].tolist() for target in samples] == [LABELS] * len(dataset)
    counts = [len(target["boxes"]) for target in samples]
    assert [len(target["labels"]) for target in samples] == counts
    assert name != "sanitize" or counts != [i % 4 for i in range(8)]


def test_field_survives_the_decoded_cache_that_shrinks_images(table, tmp_path):
    cache = CacheSettings(cache_dir=str(tmp_path / "cache"), cache_size=32)
    dataset = DetectionDataset(table, cache=cache)
    image, target = dataset[1]
    assert max(image.shape) == 32
    assert target["unlabelled"].tolist() == LABELS


@pytest.mark.parametrize("images", ["list", "stack", "pad"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batch_mixes_images_with_and_without_the_field(table, labelled, images, num_workers):
    dataset = ConcatDataset([DetectionDataset(labelled), DetectionDataset(table)])
    loader = DataLoader(
        dataset,
        batch_size=4,
        sampler=[1, 9, 2, 10],
        collate_fn=DetectionCollate(images=images),
        num_workers=num_workers,
        seed=0,
    )
    (batch,) = loader
    fields = [target.get("unlabelled") for target in batch_targets(batch)]
    assert [None if labels is None else labels.tolist() for labels in fields] == [None, LABELS, None, LABELS]


def test_duplicates_of_a_rank_keep_the_field(table):
    loader = DataLoader(
        DetectionDataset(table),
        batch_size=3,
        seed=0,
        rank=1,
        world_size=2,
        collate_fn=DetectionCollate(),
        drop_last=False,
    )
    targets = [target for batch in loader for target in batch_targets(batch)]
    assert {tuple(target["unlabelled"].tolist()) for target in targets} == {tuple(LABELS)}


def multi_task_batch(*tables):
    samples = [DetectionDataset(table, keypoints=True, attributes="all")[i] for table in tables for i in (1, 2)]
    return MultiTaskCollate(attributes=("finish",))(samples)


def test_multi_task_batch_pads_the_field(table, labelled):
    batch = multi_task_batch(labelled, table)
    assert batch.unlabelled.tolist() == [[-1, -1], [-1, -1], LABELS, LABELS]
    targets = batch.target_list()
    assert ["unlabelled" in target for target in targets] == [False, False, True, True]
    assert targets[3]["unlabelled"].tolist() == LABELS
    assert [len(target["boxes"]) for target in targets] == [1, 2, 1, 2]


def test_multi_task_batch_of_labelled_images_has_no_unlabelled_classes_and_waits_for_no_further_value(labelled):
    batch = multi_task_batch(labelled)
    assert batch.unlabelled.shape == (2, 0)
    assert all("unlabelled" not in target for target in batch.target_list())
    fields = dict(zip(type(batch).__annotations__, batch, strict=True))
    without_field = type(batch)(**{**fields, "unlabelled": None})
    assert all("unlabelled" not in target for target in without_field.target_list())
    on_device = moved(batch, META)
    with NoSync():
        assert on_device.unlabelled.shape[1] == 0


def test_landmark_crops_are_read_as_before(table):
    dataset = LandmarkDataset(table, transforms=landmark_transforms(True, size=16, flip_pairs=[(0, 1)]))
    assert dataset[0][0].shape == (3, 16, 16)


# -- several labels ----------------------------------------------------------------------------------------


def test_unlabelled_class_is_minus_one_unless_an_object_shows_it(table):
    dataset = ClassificationDataset(table, multi_label=True)
    for position in range(len(dataset)):
        present = set(table.labels[table.objects(position)].tolist())
        expected = [1.0 if c in present else (-1.0 if CLASSES[c] in UNLABELLED else 0.0) for c in range(len(CLASSES))]
        assert dataset.label(position).tolist() == expected
    assert any((dataset.label(position) == 1).any() for position in range(len(dataset)))


def test_single_labels_and_attributes_ignore_unlabelled_classes(tmp_path):
    table = draw_set(tmp_path / "single", num_images=6, objects=1)
    partly = table.with_unlabelled_classes(UNLABELLED)
    assert ClassificationDataset(partly).label(2) == ClassificationDataset(table).label(2)
    finishes = {"label_attribute": "finish", "multi_label": True}
    labels = ClassificationDataset(partly, **finishes).label(1)
    assert labels.tolist() == ClassificationDataset(table, **finishes).label(1).tolist()


def test_batch_labels_and_texts_leave_unlabelled_classes_out(table):
    dataset = ClassificationDataset(table, multi_label=True)
    batch = ClassificationCollate(multi_label=True)([dataset[i] for i in (0, 1)])
    assert (batch.labels < 0).any()
    assert batch_labels(batch).tolist() == (batch.labels > 0).nonzero()[:, 1].tolist()
    texts = label_texts(batch.labels, CLASSES)
    assert texts[0] != texts[1]
    assert not any(name in texts[0] for name in CLASSES)
