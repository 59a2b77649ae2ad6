"""Pipelines of Albumentations: rows stay aligned, marks land where they are drawn, draws depend on the key alone."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import random

import numpy as np
import PIL.Image
import pytest
import torch
from torch.utils.data import Dataset
from torchvision import tv_tensors

from lit_loader import DataLoader
from lit_loader.errors import SettingError
from lit_loader.transforms import AlbumentationsTransform, describe, detection_transforms
from tests.support.drawn_samples import MARKS, PAIRS, check_marks, draw

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks the network for its newest version
A = pytest.importorskip("albumentations")
cv2 = pytest.importorskip("cv2")

FORMATS = ("pascal_voc", "albumentations", "coco", "yolo")


def params_of_boxes_and_points(kind="pascal_voc", fields=("rows",), **params):
    return {
        "bbox_params": A.BboxParams(kind, label_fields=list(fields), **params),
        "keypoint_params": A.KeypointParams("xy", remove_invisible=False),
    }


def pipeline(*transforms, **options):
    return A.Compose(list(transforms), **params_of_boxes_and_points(**options))


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
        (
            [
                A.VerticalFlip(p=1),
                A.RandomBrightnessContrast(p=1, brightness_limit=(0, 0.02), contrast_limit=(0, 0.05)),
            ],
            1,
            0.2,
        ),
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


@pytest.mark.parametrize(("flip_chance", "order"), [(0, [0, 1, 2]), (1, [1, 0, 2])])
def test_the_result_equals_a_call_of_the_pipeline_itself(flip_chance, order):
    image, target = draw()
    masks = torch.randint(0, 2, (2, 110, 150), dtype=torch.uint8)
    target["masks"] = tv_tensors.Mask(masks)
    transforms = [A.HorizontalFlip(p=flip_chance), A.Affine(rotate=(-30, 30), p=1), A.ColorJitter(p=1)]
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
    torch.testing.assert_close(
        result["keypoints"].as_subclass(torch.Tensor), moved.float()[:, order], atol=1e-3, rtol=0
    )


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
    [
        {"num_workers": 2, "multiprocessing_context": "fork"},
        # It takes seconds to start, so that both epochs share one; forks start anew for each.
        pytest.param(
            {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}, marks=pytest.mark.soak
        ),
        {"num_workers": 2, "worker_method": "thread"},
    ],
    ids=["fork", "spawn", "thread"],
)
def test_bits_are_the_same_in_every_backend(workers):
    expected = batches(loader())
    assert len({tuple(sample) for batch in expected for sample in batch}) > 40  # every sample draws anew
    assert batches(loader(**workers)) == expected


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


def masks_of_boxes(dtype=torch.uint8):
    masks = torch.zeros((2, 110, 150), dtype=dtype)
    masks[0, 10:60, 12:62] = 1
    masks[1, 48:98, 78:138] = 1
    return tv_tensors.Mask(masks)


def test_a_target_without_boxes_keeps_every_row():
    image, target = draw()
    del target["boxes"]
    target |= {"masks": masks_of_boxes(), "names": ["first", "second"]}
    new_image, result = adapted(A.Crop(70, 40, 150, 110, p=1))(image, target)
    assert torch.equal(result["masks"].as_subclass(torch.Tensor), target["masks"][:, 40:, 70:])
    assert result["keypoints"].shape == (2, 3, 2)
    assert result["visibility"].tolist() == [[0, 0, 0], [2, 2, 2]]
    assert result["labels"].tolist() == [1, 2]
    assert result["names"] == ["first", "second"]
    new_image, result = adapted(A.HorizontalFlip(p=1))(image, target)
    assert check_marks(new_image, result, tolerance=0.1, mirrors=1) == 6


@pytest.mark.filterwarnings("ignore:Got processor for:UserWarning")  # of the pipeline of pixels alone
@pytest.mark.parametrize("transforms", [[A.HorizontalFlip(p=1)], [A.InvertImg(p=1)]], ids=["moves", "pixels"])
@pytest.mark.parametrize("names", [(), ("keypoints", "visibility"), ("boxes",), ("masks",), ("label",)], ids="+".join)
def test_declared_label_fields_need_neither_boxes_nor_points(transforms, names):
    compose = A.Compose(
        transforms,
        bbox_params=A.BboxParams("coco", label_fields=["rows", "classes"]),
        keypoint_params=A.KeypointParams("xy", remove_invisible=False, label_fields=["point_rows"]),
    )
    image, target = draw()
    target |= {"masks": masks_of_boxes(), "label": 3}
    result_image, result = AlbumentationsTransform(compose, flip_pairs=PAIRS)(
        image, {name: target[name] for name in names}
    )
    assert result.keys() == set(names)
    assert not torch.equal(result_image, image)
    assert all(len(result[name]) == 2 for name in names if name != "label")


def test_images_and_classes_pass_through_a_pipeline_with_label_fields():
    image, _ = draw()
    transform = adapted(A.HorizontalFlip(p=1))
    assert torch.equal(transform(image), image.flip(-1))
    new_image, label = transform(image, 3)
    assert torch.equal(new_image, image.flip(-1))
    assert label == 3
    assert torch.equal(transform((image,))[0], image.flip(-1))


MASK = tv_tensors.Mask(torch.zeros((110, 150), dtype=torch.uint8))


@pytest.mark.parametrize(
    ("tensors", "name"),
    [
        (({"mask": MASK},), r"target\['mask'\]"),
        (({"crowds": {"boxes": draw()[1]["boxes"]}},), r"target\['crowds'\]\['boxes'\]"),
        (({"hands": [draw()[1]["keypoints"]]},), r"target\['hands'\]\[0\]"),
        ((MASK,), "target"),
        ((3, MASK), r"sample\[2\]"),
    ],
    ids=["mask", "boxes", "points", "bare mask", "extra"],
)
def test_tensors_that_would_stay_behind_are_refused(tensors, name):
    image, _ = draw()
    with pytest.raises(SettingError, match=rf"moves pixels, so {name} would stay behind; store .*target\['masks'\]"):
        adapted(A.HorizontalFlip(p=1))(image, *tensors)
    assert len(AlbumentationsTransform(A.Compose([A.InvertImg(p=1)]))(image, *tensors)) == 1 + len(tensors)


@pytest.mark.parametrize(
    "transform",
    [
        A.PadIfNeeded(300, 300, border_mode=cv2.BORDER_REFLECT_101),
        A.Rotate(limit=(20, 20), border_mode=cv2.BORDER_REFLECT, p=1),
        A.Affine(rotate=20, border_mode=cv2.BORDER_REFLECT, p=1),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_reflected_objects_and_points_are_refused(transform):
    image, target = draw()
    remedy = "use a constant border .*BORDER_CONSTANT"
    with pytest.raises(SettingError, match=rf"changes the number of points: expected 6 .*got \d+; {remedy}"):
        adapted(transform)(image, target)
    del target["keypoints"], target["visibility"]
    with pytest.raises(SettingError, match=rf"repeats objects: .*; {remedy}"):
        adapted(transform)(image, target)


def test_a_pipeline_that_loses_points_is_refused():
    class LossyCompose(A.Compose):
        def __call__(self, **arguments):
            return {**arguments, "keypoints": arguments["keypoints"][1:]}

    compose = LossyCompose([A.HorizontalFlip()], **params_of_boxes_and_points())
    with pytest.raises(SettingError, match="changes the number of points"):
        AlbumentationsTransform(compose)(*draw())


def test_shuffled_tiles_never_swap_points_by_mistake():
    image, target = draw()
    points = {name: target[name] for name in ("keypoints", "visibility")}
    transform = AlbumentationsTransform(pipeline(A.RandomGridShuffle((9, 9), p=1)), flip_pairs=PAIRS)
    messages = set()
    for seed in range(20):
        torch.manual_seed(seed)
        try:
            transform(image, points)
        except SettingError as error:
            messages.add(str(error))
    assert len(messages) == 1
    assert "mirrors only parts of the image" in messages.pop()
    image_without_points, _ = transform(image, {"label": 3})
    assert image_without_points.shape == image.shape


@pytest.mark.parametrize(
    "value", [torch.zeros(2), np.zeros(5), ["first", "second"], (1, 2)], ids=lambda v: type(v).__name__
)
def test_undeclared_fields_are_refused(value):
    image, target = draw()
    target["extra"] = value
    flip = pipeline(A.Crop(70, 40, 150, 110, p=1))
    with pytest.raises(
        ValueError, match=r"'extra' has a first dimension.*per_object=\['extra'\].*per_image=\['extra'\]"
    ):
        AlbumentationsTransform(flip, flip_pairs=PAIRS)(image, target)
    _, result = AlbumentationsTransform(flip, flip_pairs=PAIRS, per_image=["extra"])(image, target)
    assert result["extra"] is value


def test_a_field_with_too_few_rows_is_refused():
    image, target = draw()
    target["scores"] = torch.zeros(1)
    with pytest.raises(ValueError, match="'scores' has 1 rows for 2 boxes"):
        adapted(A.HorizontalFlip(p=1))(image, target)


def test_masks_per_image_keep_their_rows():
    image, target = draw()
    target["masks"] = masks_of_boxes()[:1].as_subclass(tv_tensors.Mask)
    crop = pipeline(A.Crop(70, 40, 150, 110, p=1))
    _, result = AlbumentationsTransform(crop, flip_pairs=PAIRS, per_image=["masks"])(image, target)
    assert result["labels"].tolist() == [2]
    assert torch.equal(result["masks"].as_subclass(torch.Tensor), target["masks"][:, 40:, 70:])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_masks_keep_their_dtype_in_rotations(dtype):
    image, target = draw()
    results = []
    for mask_dtype in (torch.uint8, dtype):
        target["masks"] = masks_of_boxes(mask_dtype)
        _, result = adapted(A.Rotate(limit=(20, 20), p=1))(image, target)
        assert isinstance(result["masks"], tv_tensors.Mask)
        results.append(result["masks"])
    assert results[1].dtype is dtype
    assert torch.equal(results[0].bool(), results[1].bool())


@pytest.mark.parametrize("mode", ["P", "1"])
def test_pil_images_with_a_palette_become_rgb(mode):
    picture = PIL.Image.fromarray(draw()[0].permute(1, 2, 0).numpy()).convert(mode)
    image = adapted(A.HorizontalFlip(p=1))(picture)
    expected = np.asarray(picture.convert("RGB"))[:, ::-1]
    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


@pytest.mark.filterwarnings("ignore:Got processor for:UserWarning")  # of the pipeline of pixels alone
@pytest.mark.parametrize("planes", [1, 3])
@pytest.mark.parametrize("transforms", [[A.HorizontalFlip(p=0)], [A.InvertImg(p=0)]], ids=["moves", "pixels"])
def test_the_result_shares_no_memory_with_the_input(planes, transforms):
    image, target = draw()
    image = tv_tensors.Image(image[:planes].permute(1, 2, 0).contiguous().permute(2, 0, 1))
    target["masks"] = masks_of_boxes()
    new_image, result = adapted(*transforms)(image, target)
    assert new_image.data_ptr() != image.data_ptr()
    array = np.zeros((4, 4, 3), dtype=np.uint8)
    assert not np.shares_memory(adapted(*transforms)(array).numpy(), array)
    if isinstance(transforms[0], A.HorizontalFlip):
        for name in ("boxes", "masks", "keypoints", "visibility"):
            assert result[name].data_ptr() != target[name].data_ptr()


@pytest.mark.parametrize("place", ["extra_before", "extra_after"])
def test_a_preset_takes_a_pipeline_among_its_extra_transforms(place):
    preset = detection_transforms(False, **{place: [adapted(A.HorizontalFlip(p=1), A.Rotate(limit=(20, 20), p=1))]})
    image, target = preset(*draw())
    assert check_marks(image, target, tolerance=0.35, mirrors=1) == 6
    assert describe(preset)[0].startswith("AlbumentationsTransform(Compose([")
