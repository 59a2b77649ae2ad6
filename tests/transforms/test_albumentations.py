"""Pipelines of Albumentations: rows stay aligned, marks land where they are drawn, draws depend on the key alone."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset
from torchvision import tv_tensors

from lit_loader import DataLoader
from lit_loader.transforms import AlbumentationsTransform
from tests.support.drawn_samples import MARKS, PAIRS, check_marks, draw

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks the network for its newest version
A = pytest.importorskip("albumentations")

FORMATS = ("pascal_voc", "albumentations", "coco", "yolo")


def pipeline(*transforms, kind="pascal_voc", fields=("rows",), **params):
    return A.Compose(
        list(transforms),
        bbox_params=A.BboxParams(kind, label_fields=list(fields), **params),
        keypoint_params=A.KeypointParams("xy", remove_invisible=False),
    )


def adapted(*transforms, **options):
    return AlbumentationsTransform(pipeline(*transforms, **options), flip_pairs=PAIRS)


@pytest.mark.parametrize(
    ("transforms", "mirrors", "tolerance"),
    [
        ([A.HorizontalFlip(p=1)], 1, 0.1),
        ([A.VerticalFlip(p=1)], 1, 0.1),
        ([A.HorizontalFlip(p=1), A.VerticalFlip(p=1)], 2, 0.1),
        ([A.Transpose(p=1)], 1, 0.1),
        ([A.RandomRotate90(p=1)], 0, 0.1),
        ([A.Rotate(limit=(20, 20), p=1)], 0, 0.35),
        ([A.Crop(5, 3, 140, 105, p=1)], 0, 0.1),
        ([A.VerticalFlip(p=1), A.RandomBrightnessContrast(p=1, brightness_limit=0.05, contrast_limit=0.05)], 1, 0.2),
        ([A.HorizontalFlip(p=1), A.Rotate(limit=(-15, -15), p=1)], 1, 0.35),
    ],
    ids=lambda value: "+".join(type(part).__name__ for part in value) if isinstance(value, list) else None,
)
def test_marks_land_where_they_are_drawn(transforms, mirrors, tolerance):
    image, target = adapted(*transforms)(*draw())
    assert image.dtype == torch.uint8
    assert isinstance(image, tv_tensors.Image)
    assert check_marks(image, target, tolerance=tolerance, mirrors=mirrors) >= 5


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("fields", [(), ("rows",), ("names", "more")])
def test_every_box_format_gives_the_same_boxes(kind, fields):
    image, target = draw()
    _, result = adapted(A.HorizontalFlip(p=1), kind=kind, fields=fields)(image, target)
    left, top, right, bottom = target["boxes"].as_subclass(torch.Tensor).T
    expected = torch.stack([150 - right, top, 150 - left, bottom], dim=1)
    torch.testing.assert_close(result["boxes"].as_subclass(torch.Tensor), expected, atol=1e-3, rtol=0)
    assert result["boxes"].canvas_size == (110, 150)
    assert result["labels"].tolist() == [1, 2]


def test_rows_of_a_dropped_object_go_from_every_field():
    image, target = draw()
    masks = torch.zeros((2, 110, 150), dtype=torch.uint8)
    masks[0, 10:60, 12:62] = 1
    masks[1, 48:98, 78:138] = 1
    target |= {"masks": tv_tensors.Mask(masks), "iscrowd": torch.tensor([0, 1]), "names": ["first", "second"]}
    transform = AlbumentationsTransform(pipeline(A.Crop(70, 40, 150, 110, p=1)), flip_pairs=PAIRS, per_object=["names"])
    new_image, result = transform(image, target)
    assert tuple(new_image.shape) == (3, 70, 80)
    assert result["labels"].tolist() == [2]
    assert result["iscrowd"].tolist() == [1]
    assert result["names"] == ["second"]
    assert result["image_id"] == 7
    torch.testing.assert_close(result["boxes"].as_subclass(torch.Tensor), torch.tensor([[8.0, 8, 68, 58]]))
    assert torch.equal(result["masks"].as_subclass(torch.Tensor), masks[1:, 40:, 70:])
    assert result["keypoints"].shape == (1, 3, 2)
    assert target["labels"].tolist() == [1, 2]  # the input is not modified


def test_points_outside_of_the_result_become_absent():
    image, target = draw()
    _, result = adapted(A.Crop(0, 0, 45, 110, p=1))(image, target)
    assert result["labels"].tolist() == [1]
    assert result["visibility"].tolist() == [[2, 0, 2]]
    torch.testing.assert_close(result["keypoints"][0].as_subclass(torch.Tensor), torch.tensor(MARKS[0]))


def test_the_result_equals_a_call_of_the_pipeline_itself():
    image, target = draw()
    masks = torch.randint(0, 2, (2, 110, 150), dtype=torch.uint8)
    target["masks"] = tv_tensors.Mask(masks)
    transforms = [A.HorizontalFlip(p=0.5), A.Affine(rotate=(-30, 30), p=1), A.ColorJitter(p=1)]
    dataset = WithTransform(adapted(*transforms), (image, target))
    new_image, result = dataset[0]
    direct = pipeline(*transforms)
    direct.set_random_state(np.random.default_rng(5), random.Random(5))
    expected = direct(
        image=image.permute(1, 2, 0).numpy(),
        bboxes=target["boxes"].numpy(),
        rows=[0, 1],
        masks=masks.numpy(),
        keypoints=target["keypoints"].numpy().reshape(-1, 2) - 0.5,
    )
    assert np.array_equal(new_image.permute(1, 2, 0).numpy(), expected["image"])
    assert np.array_equal(result["masks"].numpy(), expected["masks"])
    assert np.allclose(result["boxes"].numpy(), expected["bboxes"], atol=1e-3)
    moved = torch.tensor(np.array(expected["keypoints"])).reshape(2, 3, 2) + 0.5
    unswapped = result["keypoints"].as_subclass(torch.Tensor)
    orders = [unswapped, unswapped[:, [1, 0, 2]]]
    assert any(torch.allclose(order, moved.float(), atol=1e-3) for order in orders)


class WithTransform(Dataset):
    """One sample, transformed by the generators of seed 5."""

    def __init__(self, transform, sample):
        self.transform = transform
        self.sample = sample

    def __len__(self):
        return 1

    def __getitem__(self, index):
        class Rng:
            numpy = np.random.default_rng(5)
            python = random.Random(5)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lit_loader.transforms.albumentations.sample_rng", Rng)
            return self.transform(*self.sample)


class Drawn(Dataset):
    """Samples of drawn marks, as numbers that show every draw of the pipeline."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 24

    def __getitem__(self, index):
        image, target = self.transform(*draw())
        return torch.stack([image.double().sum(), target["boxes"].sum(), target["keypoints"].sum()])


def loader(**arguments):
    transforms = [A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.5), A.RandomBrightnessContrast(p=1), A.Rotate(p=0.5)]
    return DataLoader(Drawn(adapted(*transforms)), batch_size=4, shuffle=True, seed=3, **arguments)


def batches(loader):
    with contextlib.closing(loader):
        return [batch.tolist() for _ in range(2) for batch in loader]


@pytest.mark.parametrize(
    "workers",
    [{"multiprocessing_context": "fork"}, {"multiprocessing_context": "spawn"}, {"worker_method": "thread"}],
    ids=["fork", "spawn", "thread"],
)
def test_bits_are_the_same_in_every_backend(workers):
    expected = batches(loader())
    assert len({tuple(sample) for batch in expected for sample in batch}) > 40  # every sample draws anew
    assert batches(loader(num_workers=2, **workers)) == expected


def test_a_resumed_epoch_draws_the_same():
    expected = batches(loader())
    stopped = loader()
    iterator = iter(stopped)
    for _ in range(2):
        next(iterator)
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    assert [batch.tolist() for batch in resumed] == expected[2:6]


def test_flips_are_drawn_independently():
    image = tv_tensors.Image(torch.arange(4, dtype=torch.uint8).reshape(1, 2, 2).repeat(3, 1, 1))
    transform = AlbumentationsTransform(A.Compose([A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.5)]))
    outcomes = {tuple(transform(image)[0].flatten().tolist()) for _ in range(60)}
    assert len(outcomes) == 4


def test_a_pipeline_of_pixels_alone_needs_no_parameters_of_boxes():
    image, target = draw()
    transform = AlbumentationsTransform(A.Compose([A.OneOf([A.CLAHE(p=1), A.InvertImg(p=1)], p=1)]))
    new_image, result = transform(image, target)
    assert not torch.equal(new_image, image)
    assert result == target


@pytest.mark.parametrize("kind", FORMATS)
def test_an_image_without_objects_stays_without(kind):
    image, target = draw(objects=())
    target["masks"] = tv_tensors.Mask(torch.zeros((0, 110, 150), dtype=torch.uint8))
    new_image, result = adapted(A.Resize(55, 75), kind=kind)(image, target)
    assert new_image.shape[-2:] == (55, 75)
    assert result["boxes"].shape == (0, 4)
    assert result["keypoints"].shape == (0, 3, 2)
    assert result["masks"].shape == (0, 55, 75)
    assert result["labels"].shape == (0,)


def test_an_object_without_area_is_dropped_before_albumentations_refuses_it():
    image, target = draw()
    target["boxes"][0] = torch.tensor([5, 5, 5, 30])
    _, result = adapted(A.HorizontalFlip(p=1))(image, target)
    assert result["labels"].tolist() == [2]


def test_tensors_of_the_pipeline_are_kept():
    image, _ = adapted(A.HorizontalFlip(), A.Normalize(), A.ToTensorV2())(*draw())
    assert image.dtype == torch.float32
    assert image.shape == (3, 110, 150)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda transform: pickle.loads(pickle.dumps(transform))])
def test_copies_transform_alike(copied):
    transform = adapted(A.HorizontalFlip(p=1))
    transform(*draw())
    image, target = copied(transform)(*draw())
    assert check_marks(image, target, tolerance=0.1, mirrors=1) == 6


@pytest.mark.parametrize(
    ("compose", "message"),
    [
        (lambda: A.Compose([A.HorizontalFlip(p=1)]), "no bbox_params.*BboxParams"),
        (
            lambda: A.Compose([A.HorizontalFlip(p=1)], bbox_params=A.BboxParams("coco", label_fields=["rows"])),
            "no keypoint_params.*remove_invisible=False",
        ),
        (
            lambda: A.Compose([A.HorizontalFlip()], keypoint_params=A.KeypointParams("xy")),
            r"remove_invisible=True would change .*keypoint_params.remove_invisible=False",
        ),
        (
            lambda: A.Compose([A.HorizontalFlip()], keypoint_params=A.KeypointParams("yx", remove_invisible=False)),
            "must be 'xy'",
        ),
    ],
)
def test_a_pipeline_that_would_lose_rows_is_refused(compose, message):
    with pytest.raises(ValueError, match=message):
        AlbumentationsTransform(compose())(*draw())


def test_a_mirrored_target_with_points_needs_flip_pairs():
    transform = AlbumentationsTransform(pipeline(A.HorizontalFlip(p=1)))
    with pytest.raises(ValueError, match=r"flip_pairs=None .*mirrored"):
        transform(*draw())
    AlbumentationsTransform(pipeline(A.Rotate(limit=(90, 90), p=1)))(*draw())
