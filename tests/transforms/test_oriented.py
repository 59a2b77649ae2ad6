"""Oriented boxes stay on the pixels of their objects under every transform, in both formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.annotations.quadrangles import rotated_corners, smallest_rectangles, visible_parts
from lit_loader.errors import SettingError
from lit_loader.seeding import sample_rng
from lit_loader.transforms import (
    CopyPaste,
    CropToObjects,
    DecodeAwareCompose,
    Letterbox,
    MixUp,
    Mosaic,
    RandomHorizontalFlip,
    RandomObjectCrop,
    RandomVerticalFlip,
    SanitizeObjects,
    detection_transforms,
)
from lit_loader.transforms.elastic import ElasticTransform
from lit_loader.transforms.mix_objects import Placement, place
from lit_loader.transforms.oriented import apply_transform, boxes_of_corners, corners_of_boxes
from lit_loader.transforms.preset_extras import check_holds_oriented
from lit_loader.transforms.sanitize import DeclaredFields

_HEIGHT = 200
_WIDTH = 240
# cx, cy, w, h, r: of all quadrants, one of them across the border, one along the axes.
_ROTATED = np.array([
    [70.0, 60.0, 90.0, 44.0, 25.0],
    [170.0, 70.0, 50.0, 80.0, -160.0],
    [60.0, 150.0, 70.0, 50.0, 100.0],
    [228.0, 160.0, 90.0, 50.0, -35.0],
    [140.0, 160.0, 60.0, 40.0, 0.0],
])  # fmt: skip
_TRAPEZOID = [[40.0, 30.0], [100.0, 45.0], [115.0, 105.0], [30.0, 85.0]]
_FORMATS = ("XYXYXYXY", "CXCYWHR")


def _boxes(corners: npt.NDArray[Any], kind: str, size: tuple[int, int] = (_HEIGHT, _WIDTH)) -> Any:
    like = tv_tensors.BoundingBoxes(torch.zeros((0, 5)), format=kind, canvas_size=size, clamping_mode=None)
    return boxes_of_corners(corners, like=like, canvas_size=size)


def _polygon_mask(polygon: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return the pixels whose centre is inside a convex polygon: on the same side of all of its sides."""
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    ends = np.roll(polygon, -1, axis=0)
    crosses = [(x2 - x1) * (y - y1) - (y2 - y1) * (x - x1) for (x1, y1), (x2, y2) in zip(polygon, ends, strict=True)]
    return np.all(np.array(crosses) > 0, axis=0)


def _sample(polygon: npt.NDArray[Any], kind: str) -> tuple[Any, dict[str, Any]]:
    """Return an image with a white polygon in the first channel, white in the others, and its target."""
    image = tv_tensors.Image(torch.full((3, _HEIGHT, _WIDTH), 255, dtype=torch.uint8))
    image[0] = torch.from_numpy(_polygon_mask(polygon, (_HEIGHT, _WIDTH)).astype(np.uint8) * 255)
    return image, {"boxes": _boxes(polygon[None], kind), "labels": torch.tensor([1]), "area": torch.tensor([1.0])}


def _iou(image: Tensor, corners: npt.NDArray[Any]) -> float:
    """Return the IoU of the white pixels and a polygon, without pixels that a transform added."""
    pixels = image.as_subclass(Tensor).numpy()
    white, from_image, _ = pixels > (0.5 if pixels.dtype == np.float32 else 127)
    polygon = _polygon_mask(corners, white.shape) & from_image
    return float((white & polygon).sum() / max(1, (white | polygon).sum()))


def _resized_by_torchvision(size: Sequence[int]) -> Any:
    # A transform in front that decodes the image, so that torchvision's resize follows.
    return DecodeAwareCompose([v2.RandomZoomOut(p=0.0), v2.Resize(size)])


_TRANSFORMS: dict[str, Callable[[], Any]] = {
    "hflip": lambda: RandomHorizontalFlip(1.0),
    "vflip": lambda: RandomVerticalFlip(1.0),
    "torchvision hflip": lambda: v2.RandomHorizontalFlip(1.0),
    "resize": lambda: v2.Resize([100, 120]),
    "decoded resize": lambda: _resized_by_torchvision([150, 180]),
    "shorter sides": lambda: v2.RandomShortestSize([120, 160]),
    "letterbox": lambda: Letterbox([160, 240]),
    "zoom out": lambda: v2.RandomZoomOut(p=1.0, side_range=(1.2, 2.0)),
    "rotation": lambda: v2.RandomRotation(180, v2.InterpolationMode.BILINEAR),
    "affine": lambda: v2.RandomAffine(90, (0.1, 0.1), (0.8, 1.2), interpolation=v2.InterpolationMode.BILINEAR),
    "crop": lambda: v2.RandomCrop((150, 180)),
    "iou crop": lambda: RandomObjectCrop(p=1.0),
    "preset": lambda: detection_transforms(True, size=(160, 200), letterbox=True, hflip=0.5, vflip=0.5,
                                           zoom_out=0.5, rotation=45, fill=0),
}  # fmt: skip
# A rectangle becomes another quadrilateral, which only corners describe.
_BENDING: dict[str, Callable[[], Any]] = {
    "stretch": lambda: v2.Resize([100, 240]),
    "decoded stretch": lambda: _resized_by_torchvision([100, 240]),
    "shear": lambda: v2.RandomAffine(10, shear=25, interpolation=v2.InterpolationMode.BILINEAR),
    "perspective": lambda: v2.RandomPerspective(0.4, p=1.0),
    "resized crop": lambda: v2.RandomResizedCrop((120, 200), scale=(0.6, 1.0)),
}


def _transformed(make: Callable[[], Any], polygon: npt.NDArray[Any], kind: str, seed: int) -> tuple[Any, Any, float]:
    """Return the image, the corners (None if the object was removed), and the visible area."""
    torch.manual_seed(seed)
    image, target = DecodeAwareCompose([make()])(*_sample(polygon, kind))
    if not len(target["boxes"]):
        return image, None, 0.0
    assert target["boxes"].format.name == kind
    assert target["boxes"].canvas_size == tuple(image.shape[-2:])
    corners = corners_of_boxes(target["boxes"])
    return image, corners[0], visible_parts(corners, (0, 0, image.shape[2], image.shape[1])).areas[0]


@pytest.mark.parametrize("kind", _FORMATS)
@pytest.mark.parametrize("name", _TRANSFORMS)
def test_rectangles_stay_on_their_pixels(name: str, kind: str) -> None:
    num_compared = 0
    for number, polygon in enumerate(rotated_corners(_ROTATED)):
        image, corners, area = _transformed(_TRANSFORMS[name], polygon, kind, seed=number)
        # The border pixels of a small part are too many of its pixels.
        if area > 500:
            assert _iou(image, corners) > 0.9
            num_compared += 1
    assert num_compared >= 4


@pytest.mark.parametrize("name", [*_TRANSFORMS, *_BENDING])
def test_quadrangles_stay_on_their_pixels_as_corners(name: str) -> None:
    for seed in (1, 2):
        image, corners, area = _transformed((_TRANSFORMS | _BENDING)[name], np.array(_TRAPEZOID), "XYXYXYXY", seed)
        assert area > 500
        assert _iou(image, corners) > 0.9


@pytest.mark.parametrize("name", _BENDING)
def test_bent_rectangles_are_enclosed_by_the_smallest_rectangle(name: str) -> None:
    polygon = rotated_corners(_ROTATED)[0]
    _, corners, _ = _transformed(_BENDING[name], polygon, "XYXYXYXY", seed=1)
    _, rectangle, _ = _transformed(_BENDING[name], polygon, "CXCYWHR", seed=1)
    np.testing.assert_allclose(rectangle, rotated_corners(smallest_rectangles(corners[None]))[0], atol=0.01)


def test_elastic_moves_corners() -> None:
    image, corners, _ = _transformed(lambda: ElasticTransform(60.0, 9.0), rotated_corners(_ROTATED)[0], "XYXYXYXY", 0)
    assert _iou(image, corners) > 0.9


@pytest.mark.parametrize("kind", _FORMATS)
def test_torchvisions_flips_give_the_same_boxes(kind: str) -> None:
    boxes = _boxes(rotated_corners(_ROTATED), kind)
    for axis, flip in enumerate((v2.functional.horizontal_flip, v2.functional.vertical_flip)):
        flips = (RandomHorizontalFlip, RandomVerticalFlip)
        image = tv_tensors.Image(torch.zeros(3, _HEIGHT, _WIDTH, dtype=torch.uint8))
        _, target = flips[axis](1.0)(image, {"boxes": boxes})
        np.testing.assert_allclose(corners_of_boxes(target["boxes"]), corners_of_boxes(flip(boxes)), atol=1e-3)


@pytest.mark.parametrize("kind", _FORMATS)
def test_images_without_objects_keep_format_and_canvas(kind: str) -> None:
    image = tv_tensors.Image(torch.zeros(3, _HEIGHT, _WIDTH, dtype=torch.uint8))
    target = {"boxes": _boxes(np.zeros((0, 4, 2)), kind), "labels": torch.zeros(0, dtype=torch.int64)}
    transforms = detection_transforms(
        True, size=(64, 80), letterbox=True, hflip=1.0, zoom_out=1.0, iou_crop=1.0, rotation=30
    )
    _, result = transforms(image, target)
    assert result["boxes"].shape == (0, 8 if kind == "XYXYXYXY" else 5)
    assert (result["boxes"].format.name, result["boxes"].canvas_size) == (kind, (64, 80))


@pytest.mark.parametrize("kind", _FORMATS)
def test_sanitize_keeps_the_shape_and_measures_the_visible_part(kind: str) -> None:
    rotated = np.array([
        [0.0, 100.0, 40.0, 20.0, 90.0],  # half of it outside
        [100.0, 100.0, 30.0, 2.0, 45.0],  # thin along its own side, though not along the axes
        [-19.0, -19.0, 40.0, 20.0, 45.0],  # the box around it touches the canvas, its own sides do not
        [120.0, 60.0, 40.0, 20.0, 10.0],
    ])  # fmt: skip
    boxes = _boxes(rotated_corners(rotated), kind)
    target = {"boxes": boxes, "labels": torch.arange(4), "area": torch.zeros(4)}
    _, result = SanitizeObjects(min_size=3.0)(None, target)
    assert result["labels"].tolist() == [0, 3]
    np.testing.assert_allclose(result["area"], [400.0, 800.0], rtol=1e-5)
    torch.testing.assert_close(result["boxes"].as_subclass(Tensor), boxes.as_subclass(Tensor)[[0, 3]])


def test_plain_boxes_and_oriented_ones_without_angle_are_sanitized_alike() -> None:
    rng = np.random.default_rng(0)
    low = rng.uniform(-30, _HEIGHT, (50, 2))
    xyxy = np.concatenate([low, low + rng.uniform(0, 20, (50, 2))], axis=1)
    plain = tv_tensors.BoundingBoxes(
        torch.from_numpy(xyxy).float(), format="XYXY", canvas_size=(_HEIGHT, _WIDTH), clamping_mode=None
    )
    oriented = _boxes(xyxy[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2), "XYXYXYXY")
    sanitize = SanitizeObjects(min_size=6.0, min_area=80.0)
    results = [
        sanitize(None, {"boxes": boxes, "labels": torch.arange(50), "area": torch.zeros(50)})[1]
        for boxes in (v2.functional.clamp_bounding_boxes(plain, clamping_mode="hard"), oriented)
    ]
    assert results[0]["labels"].tolist() == results[1]["labels"].tolist()
    assert 0 < len(results[0]["labels"]) < 50
    torch.testing.assert_close(results[0]["area"], results[1]["area"], atol=1e-2, rtol=1e-4)


@pytest.mark.parametrize("kind", _FORMATS)
@pytest.mark.parametrize("mix", [Mosaic(size=(_HEIGHT, _WIDTH)), MixUp()])
def test_mixed_boxes_stay_on_their_pixels(mix: Any, kind: str) -> None:
    polygons = rotated_corners(_ROTATED)
    samples = [_sample(polygon, kind) for polygon in polygons[:4]]
    black = tv_tensors.Image(torch.zeros(3, _HEIGHT, _WIDTH, dtype=torch.uint8))
    num_checked = 0
    for seed in range(3):
        torch.manual_seed(seed)
        # One object a time, so that all white pixels are its own.
        for number in range(mix.num_partners(0) + 1):
            parts = [(black, {**target, "boxes": target["boxes"]}) for _, target in samples[: mix.num_partners(0) + 1]]
            white = samples[number][0][:1].expand(3, -1, -1).clone()
            parts[number] = (tv_tensors.Image(white), {**samples[number][1], "labels": torch.tensor([9])})
            image, target = mix.apply(parts, sample_rng())
            corners = corners_of_boxes(target["boxes"])[target["labels"].numpy() == 9]
            threshold = 0 if isinstance(mix, MixUp) else 127
            pixels = image.as_subclass(Tensor)[0].numpy()
            visible = (pixels > threshold) & (pixels != 114)
            if len(corners) and visible.sum() > 800:
                polygon = _polygon_mask(corners[0], visible.shape)
                # Of a cut object, the box is the smallest rectangle around its rest.
                assert (visible & polygon).sum() > 0.95 * visible.sum()
                num_checked += 1
    assert num_checked >= 4


def test_a_mosaic_keeps_an_object_by_the_visible_share_of_its_polygon() -> None:
    # The box around a thin diagonal object is mostly empty; a quarter that shows 36 % of that box shows none of it.
    corners = rotated_corners(np.array([[50.0, 50.0, 130.0, 4.0, 45.0]]))
    target = {"boxes": _boxes(corners, "CXCYWHR", (100, 100)), "labels": torch.tensor([1])}
    placement = Placement((0, 0, 46, 46), (46, 46))
    assert not len(place(target, placement, (100, 100), min_visible=0.1, fields=DeclaredFields())["boxes"])
    placement = Placement((0, 54, 46, 100), (46, 46))
    visible = place(target, placement, (100, 100), min_visible=0.1, fields=DeclaredFields())
    assert visible["boxes"][0, 4].item() == pytest.approx(45, abs=1e-3)
    assert visible["boxes"][0, 2].item() == pytest.approx(42 * 2**0.5, abs=4)


@pytest.mark.parametrize(
    ("transform", "match"),
    [
        (CropToObjects(), "moves boxes along the axes"),
        (v2.RandomIoUCrop(), "moves boxes along the axes.*RandomObjectCrop"),
        (v2.ElasticTransform(), "points beyond the border.*elastic.ElasticTransform"),
        (v2.ConvertBoundingBoxFormat("XYWHR"), "for a parallelogram"),
        (v2.ClampBoundingBoxes(), "changes their shape"),
        (v2.SetClampingMode("hard"), "changes their shape"),
        (v2.SanitizeBoundingBoxes(), "cross the border.*SanitizeObjects"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_transforms_that_cannot_take_oriented_boxes_are_refused(transform: Any, match: str) -> None:
    check_holds_oriented(detection_transforms(True, zoom_out=0.5, iou_crop=0.5, rotation=10))
    for steps in (DecodeAwareCompose([v2.RandomApply([transform], p=1.0)]), nn.Sequential(transform)):
        with pytest.raises(SettingError, match=match):
            check_holds_oriented(steps)
        # A user may call transforms without a data set.
        if not isinstance(transform, CropToObjects):
            with pytest.raises(SettingError, match=match):
                apply_transform(steps, _sample(np.array(_TRAPEZOID), "XYXYXYXY"))


class _Rotation(v2.RandomRotation):  # type: ignore[misc] # torchvision is untyped
    """A transform of a user."""


_ROTATION: Final = v2.RandomRotation(40)


@pytest.mark.parametrize("kind", _FORMATS)
@pytest.mark.parametrize(
    "steps",
    [
        _Rotation(40),
        v2.Compose([_ROTATION]),
        nn.Sequential(v2.Identity(), _ROTATION),
        DecodeAwareCompose([v2.RandomApply(nn.ModuleList([_ROTATION]), p=1.0)]),
        v2.RandomChoice([v2.Identity(), v2.RandomOrder([_ROTATION])], p=[0.0, 1.0]),
    ],
    ids=lambda steps: type(steps).__name__,
)
def test_corners_move_as_points_inside_of_torchvisions_containers(steps: Any, kind: str) -> None:
    polygon = np.array(_TRAPEZOID)
    torch.manual_seed(3)
    image, target = apply_transform(steps, _sample(polygon, kind))
    # The container draws as torchvision's does, so the image shows the same angle.
    torch.manual_seed(3)
    expected_image, _ = steps(_sample(polygon, kind))
    assert torch.equal(image, expected_image)
    assert not torch.equal(image, _sample(polygon, kind)[0])
    if kind == "XYXYXYXY":
        assert _iou(image, corners_of_boxes(target["boxes"])[0]) > 0.9
    else:
        assert target["boxes"][0, 2:4].tolist() == pytest.approx(_boxes(polygon[None], kind)[0, 2:4].tolist(), abs=0.01)


@pytest.mark.parametrize("kind", _FORMATS)
@pytest.mark.parametrize(
    "transform",
    [
        v2.ColorJitter(0.1),
        v2.ClampKeyPoints(),
        v2.RandomPerspective(p=0.0),
        v2.Resize([_HEIGHT, _WIDTH]),
        RandomObjectCrop(p=0.0),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_boxes_that_nothing_moves_keep_every_bit(transform: Any, kind: str) -> None:
    rng = np.random.default_rng(0)
    rotated = np.concatenate([rng.uniform(-50, 250, (20, 4)), rng.uniform(-180, 180, (20, 1))], axis=1)
    # Without a width, and beyond the canvas.
    boxes = _boxes(rotated_corners(np.abs(rotated)), kind)
    if kind == "CXCYWHR":
        boxes[0] = torch.tensor([50.0, 50.0, 0.0, 20.0, 30.0])
    image = tv_tensors.Image(torch.zeros(3, _HEIGHT, _WIDTH, dtype=torch.uint8))
    _, target = apply_transform(transform, (image, {"boxes": boxes.clone(), "labels": torch.zeros(20)}))
    assert target["boxes"].format is boxes.format
    assert torch.equal(target["boxes"].as_subclass(Tensor), boxes.as_subclass(Tensor))


def test_transforms_of_tensor_types_get_the_boxes() -> None:
    sample = _sample(np.array(_TRAPEZOID), "CXCYWHR")
    to_double = v2.ToDtype({tv_tensors.BoundingBoxes: torch.float64, "others": None})
    converted = DecodeAwareCompose([to_double, v2.RandomRotation(10)])(*sample)[1]["boxes"]
    assert (converted.dtype, converted.format.name) == (torch.float64, "CXCYWHR")
    assert type(DecodeAwareCompose([v2.ToPureTensor()])(*sample)[1]["boxes"]) is Tensor


def test_mixes_do_not_write_into_boxes_in_double_precision() -> None:
    boxes = tv_tensors.wrap(
        _boxes(rotated_corners(_ROTATED), "XYXYXYXY").double(), like=_boxes(np.zeros((0, 4, 2)), "XYXYXYXY")
    )
    original = boxes.clone()
    part = Placement((100, 0, _WIDTH, _HEIGHT), (_HEIGHT, _WIDTH - 100))
    placed = place({"boxes": boxes}, part, (_HEIGHT, _WIDTH), min_visible=0.1, fields=DeclaredFields())
    assert len(placed["boxes"]) < len(boxes)
    assert torch.equal(boxes, original)


def test_angles_are_above_minus_180_in_single_precision() -> None:
    corners = rotated_corners(np.array([[50.0, 50.0, 40.0, 20.0, -180 + 1e-9], [50.0, 50.0, 40.0, 20.0, -179.9]]))
    degrees = smallest_rectangles(corners)[:, 4].astype(np.float32)
    assert degrees.tolist() == [180.0, pytest.approx(-179.9)]


def test_copy_paste_names_the_format_that_it_cannot_mix() -> None:
    samples = [_sample(polygon, "CXCYWHR") for polygon in rotated_corners(_ROTATED)[:2]]
    with pytest.raises(TypeError, match="format XYXY"):
        CopyPaste(num_objects=1).apply(samples, sample_rng())
