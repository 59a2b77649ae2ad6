"""The classification data set: which images or objects are samples, and what their labels are."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as first_version
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.annotations import Attribute
from lit_loader.datasets import ClassificationDataset, every_sample, labelled_samples
from lit_loader.errors import ImageError
from lit_loader.images import ImageReading
from lit_loader.transforms import classification_transforms
from tests.support.drawn_set import CLASSES, FINISHES, draw_set


@pytest.fixture
def table(tmp_path):
    """Twelve images with 0, 1, 2, 3, 0, ... objects."""
    return draw_set(tmp_path)


@pytest.fixture
def single(tmp_path):
    """Ten images of one object each, every fifth without a finish."""
    return draw_set(tmp_path, num_images=10, objects=1)


def test_a_sample_is_an_image_its_label_and_its_place(single):
    dataset = ClassificationDataset(single)
    image, label, image_id, is_duplicate = dataset[2]
    assert isinstance(image, tv_tensors.Image)
    assert (image.shape, image.dtype) == ((3, 48, 64), torch.uint8)
    assert (label, type(label)) == (int(single.labels[2]), int)
    assert (image_id, is_duplicate) == (2, False)
    assert dataset[-1][2] == 9
    labels = single.labels.tolist()
    assert [label for _, label, *_ in dataset] == labels
    assert [dataset.label(position) for position in range(-10, 10)] == labels * 2
    with pytest.raises(IndexError):
        dataset.label(10)
    assert dataset.class_names == CLASSES
    with pytest.raises(IndexError, match="index 10"):
        dataset[10]


def test_an_attribute_labels_and_samples_without_it_are_left_out(single):
    dataset = ClassificationDataset(single, label_attribute="finish")
    ids = single.attributes["finish"].ids
    assert [label for _, label, *_ in dataset] == ids[ids >= 0].tolist()
    assert dataset.num_left_out == (ids < 0).sum() == 2
    assert dataset.class_names == FINISHES


@pytest.mark.parametrize(
    "transforms",
    [
        v2.Compose([v2.AutoAugment(), v2.Resize((20, 24))]),
        v2.Compose([v2.RandomApply([v2.RandAugment()]), v2.Resize((20, 24))]),
        v2.Compose([first_version.AutoAugment(), v2.Resize((20, 24))]),
        first_version.Compose([first_version.AutoAugment(), first_version.Resize((20, 24))]),
        torch.nn.Sequential(v2.TrivialAugmentWide(), v2.Resize((20, 24))),
        v2.functional.vertical_flip,
    ],
)
def test_transforms_of_images_alone_work_on_whole_images(single, transforms):
    image, label, *_ = pickle.loads(pickle.dumps(ClassificationDataset(single, transforms=transforms)))[2]
    assert image.shape == ((3, 48, 64) if transforms is v2.functional.vertical_flip else (3, 20, 24))
    assert label == int(single.labels[2])


@pytest.mark.parametrize("label_attribute", [None, "finish"])
def test_object_crops_are_samples_of_their_own(table, label_attribute):
    dataset = ClassificationDataset(
        table,
        label_attribute=label_attribute,
        sample_unit="object",
        transforms=classification_transforms(False, size=16, crop=True),
    )
    ids, _ = table.labels_of(label_attribute)
    assert [label for _, label, *_ in dataset] == ids[ids >= 0].tolist()
    assert dataset.num_left_out == (ids < 0).sum()
    assert {tuple(image.shape) for image, *_ in dataset} == {(3, 16, 16)}


def test_crops_show_their_object_and_images_the_whole(single):
    cut = classification_transforms(False, size=16, crop=True, resize="stretch", to_float=False)
    transforms = classification_transforms(False, size=16, resize="stretch", to_float=False)
    for image, label, *_ in ClassificationDataset(single, sample_unit="object", transforms=cut):
        assert int(image[0, 0, 0]) == 20 + 40 * label
    corners = {int(image[0, 0, 0]) for image, *_ in ClassificationDataset(single, transforms=transforms)}
    assert 150 in corners  # the background


def test_an_image_may_have_several_labels_or_none(table):
    dataset = ClassificationDataset(table, multi_label=True)
    assert (len(dataset), dataset.num_left_out) == (12, 0)
    for i, (_, label, *_) in enumerate(dataset):
        assert label.dtype == torch.float32
        assert set(label.nonzero().flatten().tolist()) == set(table.labels[table.objects(i)].tolist())
    assert dataset[0][1].tolist() == [0, 0, 0]


def test_an_image_whose_objects_have_no_value_is_no_negative(tmp_path):
    ids = np.array([0, -1, -1, 2])
    table = draw_set(
        tmp_path, num_images=4, offsets=[0, 2, 3, 3, 4], attributes={"finish": Attribute(ids=ids, names=FINISHES)}
        , **dict.fromkeys(("keypoints", "visibility")), keypoint_names=(), flip_pairs=(), labels=[0] * 4,
        boxes=[[1, 1, 20, 20]] * 4,
    )  # fmt: skip
    dataset = ClassificationDataset(table, label_attribute="finish", multi_label=True)
    assert [label.tolist() for _, label, *_ in dataset] == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert dataset.num_left_out == 1
    assert [label for _, label, *_ in ClassificationDataset(table, label_attribute="finish")] == [0, 2]


def test_images_with_several_labels_are_refused_by_name_without_multi_label(table):
    mixed = [i for i in range(12) if len(set(table.labels[table.objects(i)].tolist())) > 1]
    with pytest.raises(ValueError, match=rf"{len(mixed)} images .*{mixed[0]}\.png; pass multi_label=True"):
        ClassificationDataset(table)


@pytest.mark.parametrize("sample_unit", ["image", "object"])
def test_unlabelled_keep_labels_unknown_and_ambiguous_samples_minus_one(table, sample_unit):
    dataset = ClassificationDataset(table, label_attribute="finish", sample_unit=sample_unit, unlabelled="keep")
    ids = table.attributes["finish"].ids
    of_images = [set(ids[table.objects(i)].tolist()) - {-1} for i in range(12)]
    expected_labels = [labels.pop() if len(labels) == 1 else -1 for labels in of_images]
    assert [label for _, label, *_ in dataset] == (expected_labels if sample_unit == "image" else ids.tolist())
    assert dataset.num_left_out == 0
    assert every_sample(dataset.table, sample_unit=sample_unit).table is dataset.table


def test_an_attribute_that_a_kept_set_does_not_have_is_a_label_of_nothing(single):
    dataset = ClassificationDataset(single, label_attribute="colour", unlabelled="keep")
    assert (dataset[0][1], dataset.class_names) == (-1, ())
    hot = ClassificationDataset(single, label_attribute="colour", multi_label=True, unlabelled="keep")[0][1]
    assert (hot.shape, hot.dtype) == ((0,), torch.float32)


@pytest.mark.parametrize(
    "settings", [{}, {"label_attribute": "finish"}, {"label_attribute": "finish", "sample_unit": "object"}], ids=str
)
def test_samples_of_samples_are_the_same(single, settings):
    samples = labelled_samples(single, **settings).table
    samples_of_samples = labelled_samples(samples, **settings)
    assert (samples_of_samples.table is samples, samples_of_samples.num_left_out) == (True, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_attribute": "colour"}, r"\['finish'\]; got by='colour'"),
        ({"sample_unit": "boxes"}, "sample_unit='boxes' is not one of"),
        ({"sample_unit": "object", "multi_label": True}, "one object has one label"),
        ({"sample_unit": "object", "multi_label": True, "unlabelled": "keep"}, "one object has one label"),
        ({"unlabelled": "guess"}, "unlabelled='guess' is not one of"),
    ],
)
def test_wrong_settings_are_refused(single, settings, message):
    with pytest.raises(ValueError, match=message):
        ClassificationDataset(single, **settings)


def test_a_set_without_any_label_is_refused(tmp_path):
    ids = np.full(2, -1)
    table = draw_set(tmp_path, num_images=2, objects=1, attributes={"finish": Attribute(ids=ids, names=FINISHES)})
    for sample_unit in ("object", "image"):
        with pytest.raises(ValueError, match=r"no sample is left .*the attribute 'finish'"):
            labelled_samples(table, label_attribute="finish", sample_unit=sample_unit)


def test_reading_settings_reach_the_images(single):
    with pytest.raises(ImageError, match="max_pixels=9"):
        ClassificationDataset(single, reading=ImageReading(max_pixels=9))[0]
    Image.new("RGB", (10, 9)).save(single.image_path(1))
    with pytest.raises(ImageError, match="the image is 10x9, its annotation says 64x48"):
        ClassificationDataset(single, reading=ImageReading(size_mismatch="raise"))[1]
    turned = Image.Exif()
    turned[0x0112] = 3  # by 180 degrees
    Image.fromarray(np.arange(64 * 48, dtype=np.uint16).astype(np.uint8).reshape(48, 64)).save(
        single.image_path(1), exif=turned
    )
    upright, stored = (
        ClassificationDataset(single, reading=ImageReading(exif_orientation=turn))[1][0] for turn in (True, False)
    )
    assert torch.equal(upright, stored.flip(1, 2))
    assert not torch.equal(upright, stored)
    seen = []

    def look(image, target):
        seen.append(target)
        return image, target

    ClassificationDataset(single, transforms=look)[3]
    assert seen[0]["labels"].tolist() == [int(single.labels[3])]
