"""Oriented boxes from a table to batches, pictures, checks and statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader import DetectionDataModule
from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.quadrangles import enclosing_boxes, rotated_corners
from lit_loader.datamodules.pictures import draw_objects
from lit_loader.datasets import DetectionDataset
from lit_loader.errors import SettingError
from lit_loader.images import CacheSettings
from lit_loader.inspection.drawing import draw_image
from lit_loader.inspection.statistics import statistics_of
from lit_loader.recipes import DetectionTask
from lit_loader.transforms import CopyPaste, DecodeAwareCompose, Mosaic
from tests.support.checking import check_annotations
from tests.support.documents import ALL, blocks
from tests.support.drawn_set import DrawnSource

_ROTATED = [60.0, 50.0, 60.0, 20.0, 30.0]
_TRAPEZOID = [[100.0, 60.0], [150.0, 70.0], [140.0, 95.0], [95.0, 85.0]]
_PLAIN = [10.0, 80.0, 40.0, 95.0]
_NAN = float("nan")


@pytest.fixture
def table(tmp_path: Path) -> AnnotationTable:
    """A table of two equal images, 160 x 100, with a rotated box, a quadrangle and a plain box."""
    polygons = [rotated_corners(np.array([_ROTATED]))[0], np.array(_TRAPEZOID)]
    picture = Image.new("RGB", (160, 100))
    for polygon in polygons:
        ImageDraw.Draw(picture).polygon([tuple(point) for point in polygon.tolist()], fill="white")
    for number in range(2):
        picture.save(tmp_path / f"{number}.png")
    boxes = [*enclosing_boxes(np.array(polygons)).tolist(), _PLAIN]
    return AnnotationTable(
        root=tmp_path,
        image_paths=["0.png", "1.png"],
        class_names=("ship", "car"),
        widths=[160, 160],
        heights=[100, 100],
        offsets=[0, 3, 6],
        boxes=boxes * 2,
        corners=[[[_NAN] * 2] * 4, _TRAPEZOID, [[_NAN] * 2] * 4] * 2,
        rotated_boxes=[_ROTATED, [_NAN] * 5, [_NAN] * 5] * 2,
        labels=[0, 1, 1] * 2,
    )


def _plain(values: Any) -> Tensor:
    return values.as_subclass(Tensor)


def test_each_annotation_is_converted_to_the_requested_form(table: AnnotationTable) -> None:
    target = DetectionDataset(table, oriented="rotated")[0][1]
    boxes = target["boxes"]
    assert boxes.format is tv_tensors.BoundingBoxFormat.CXCYWHR
    assert (boxes.dtype, boxes.canvas_size, boxes.clamping_mode) == (torch.float32, (100, 160), None)
    torch.testing.assert_close(_plain(boxes)[0], torch.tensor(_ROTATED), atol=1e-3, rtol=0)
    torch.testing.assert_close(_plain(boxes)[2], torch.tensor([25.0, 87.5, 30.0, 15.0, 0.0]))
    # The smallest rectangle around the quadrangle contains its corners.
    rectangle = rotated_corners(_plain(boxes).numpy())[1]
    sides = np.roll(rectangle, -1, axis=0) - rectangle
    offsets = np.array(_TRAPEZOID)[:, None] - rectangle
    assert (sides[:, 0] * offsets[..., 1] - sides[:, 1] * offsets[..., 0] > -1e-2).all()
    corners = DetectionDataset(table, oriented="corners")[0][1]["boxes"]
    assert corners.format is tv_tensors.BoundingBoxFormat.XYXYXYXY
    torch.testing.assert_close(_plain(corners)[1], torch.tensor(_TRAPEZOID).flatten())
    torch.testing.assert_close(_plain(corners)[2], torch.tensor([10.0, 80, 40, 80, 40, 95, 10, 95]))
    assert target["area"][0].item() == pytest.approx(1200, rel=1e-4)


def test_boxes_along_the_axes_stay_as_they_were(table: AnnotationTable) -> None:
    boxes = DetectionDataset(table)[0][1]["boxes"]
    assert boxes.format is tv_tensors.BoundingBoxFormat.XYXY
    torch.testing.assert_close(_plain(boxes), torch.from_numpy(np.array(table.boxes[:3])))


@pytest.mark.parametrize("form", ["corners", "rotated"])
def test_a_shrunk_cache_shrinks_oriented_boxes(table: AnnotationTable, tmp_path: Path, form: Any) -> None:
    target = DetectionDataset(table, oriented=form)[0][1]
    settings = CacheSettings(cache_dir=tmp_path / "cache", cache_size=80, progress=False)
    image, shrunk = DetectionDataset(table, oriented=form, cache=settings)[0]
    assert (tuple(image.shape[-2:]), shrunk["boxes"].canvas_size) == ((50, 80), (50, 80))
    factors = torch.tensor([0.5, 0.5, 0.5, 0.5, 1.0]) if form == "rotated" else 0.5
    torch.testing.assert_close(_plain(shrunk["boxes"]), _plain(target["boxes"]) * factors, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(shrunk["area"], target["area"] / 4)


@pytest.mark.parametrize("images", ["list", "pad"])
def test_batches_carry_the_format(table: AnnotationTable, images: Any) -> None:
    module = DetectionDataModule(
        DrawnSource(train=table),
        oriented="rotated",
        images=images,
        batch_size=2,
        train_transforms={"hflip": 0.5, "vflip": 0.5, "rotation": 30, "size": [80, 128], "letterbox": True},
        mixing=Mosaic(p=0.5),
    )
    targets = module.first_batch("train")[1]
    assert len(targets) == 2
    assert {target["boxes"].format.name for target in targets} == {"CXCYWHR"}
    assert {target["boxes"].canvas_size for target in targets} == {(80, 128)}
    module.plot_batch("train")


def test_tiles_show_oriented_boxes_in_their_own_pixels(table: AnnotationTable) -> None:
    module = DetectionDataModule(DrawnSource(val=table), oriented="corners", tiling={"size": 100}, batch_size=2)
    _, targets = module.first_batch("val")
    corners = _plain(targets[1]["boxes"])[targets[1]["labels"] == 2][0]
    # The second tile ends at the right edge, 160.
    torch.testing.assert_close(corners.reshape(4, 2), torch.tensor(_TRAPEZOID) - torch.tensor([60.0, 0.0]))


@pytest.mark.parametrize(
    ("settings", "match"), [({"oriented": "rotated", "mixing": CopyPaste()}, "cuts objects out along the axes")]
)
def test_settings_that_cannot_hold_oriented_boxes_are_refused(
    table: AnnotationTable, settings: dict[str, Any], match: str
) -> None:
    with pytest.raises(SettingError, match=match):
        DetectionDataModule(DrawnSource(train=table), **settings)


def test_tables_without_oriented_boxes_are_refused(tmp_path: Path, table: AnnotationTable) -> None:
    plain_table = replace(table, corners=None, rotated_boxes=None)
    empty_columns = replace(table, corners=np.full((6, 4, 2), _NAN), rotated_boxes=np.full((6, 5), _NAN))
    with pytest.raises(SettingError, match=r"no object of .* has an oriented box"):
        DetectionDataModule(DrawnSource(train=plain_table), oriented="corners").first_batch("train")
    for other_table in (plain_table, empty_columns):
        with pytest.raises(SettingError, match=r"no object of .* has an oriented box"):
            DetectionDataset(other_table, oriented="rotated")
    # Prediction needs no boxes.
    module = DetectionDataModule(DrawnSource(predict=empty_columns), oriented="rotated", batch_size=1)
    assert module.first_batch("predict")[1][0]["boxes"].format is tv_tensors.BoundingBoxFormat.XYXY


def test_rotated_boxes_have_the_bits_of_the_annotation(table: AnnotationTable) -> None:
    rotated = np.array(table.rotated_boxes)
    rotated[0] = [20000.3, 19999.7, 30.1, 20.2, -170.3]
    table = replace(table, rotated_boxes=rotated)
    boxes = DetectionDataset(table, oriented="rotated")[0][1]["boxes"]
    assert _plain(boxes)[0].tolist() == rotated[0].tolist()


def test_transforms_of_a_data_set_move_corners_without_a_composition_of_this_package(table: AnnotationTable) -> None:
    rotation = v2.RandomRotation((30, 30))
    boxes = [
        DetectionDataset(table, oriented="corners", transforms=steps)[0][1]["boxes"]
        for steps in (rotation, v2.Compose([rotation]), DecodeAwareCompose([rotation]))
    ]
    assert torch.equal(boxes[0], boxes[2])
    assert torch.equal(boxes[1], boxes[2])
    # The trapezoid, turned by hand; torchvision would make a rectangle of it.
    offsets = np.array(_TRAPEZOID) - [80.0, 50.0]
    cos = np.cos(np.pi / 6)
    sin = np.sin(np.pi / 6)
    turned = offsets @ [[cos, -sin], [sin, cos]] + [80.0, 50.0]
    np.testing.assert_allclose(_plain(boxes[1])[1].reshape(4, 2), turned, atol=0.01)


def test_detection_task_refuses_oriented_boxes_before_training(table: AnnotationTable) -> None:
    task = DetectionTask("fcos_small", class_names=["ship", "car"])
    module = DetectionDataModule(DrawnSource(train=table), oriented="rotated", batch_size=2)
    task._trainer = SimpleNamespace(datamodule=module)
    with pytest.raises(SettingError, match="trains detectors of boxes along the axes"):
        task.setup("fit")
    with pytest.raises(ValueError, match=r"expected boxes \(N, 4\), xyxy"):
        task.check_batch(module.first_batch("train"))


def _has_colour(picture: Tensor, x: float, y: float, zoom: float) -> bool:
    """Return True if a saturated colour is near a point, where the image is black or white."""
    column = round(x * zoom)
    row = round(y * zoom)
    part = picture[:, max(0, row - 4) : row + 5, max(0, column - 4) : column + 5].int()
    return bool((part.amax(dim=0) - part.amin(dim=0) > 60).any())


def test_pictures_show_the_sides_of_oriented_boxes(table: AnnotationTable) -> None:
    corners = rotated_corners(np.array([_ROTATED]))[0]
    # The middle of the side that is not dashed, and the corner of the box around it.
    x, y = (corners[2] + corners[3]) / 2
    low = corners.min(axis=0)
    for zoom in (0.5, 2):
        picture = draw_image(table, 0, longer_side=int(160 * zoom))
        assert _has_colour(picture, x, y, zoom)
    for form in ("corners", "rotated"):
        image, target = DetectionDataset(table, oriented=form)[0]
        first = {"boxes": target["boxes"][:1], "labels": target["labels"][:1]}
        picture = draw_objects(image, first, class_names=("", ""), longer_side=320)
        assert _has_colour(picture, x, y, 2)
        assert not _has_colour(picture, low[0], corners.max(axis=0)[1], 2)


def test_pictures_of_absurd_corners_are_drawn_in_bounded_time(table: AnnotationTable) -> None:
    corners = np.array(table.corners)
    corners[1, :, 0] *= 1e30
    assert draw_image(replace(table, corners=corners), 0).shape[0] == 3


def test_check_reports_quadrangles_without_area_and_with_crossing_sides(tmp_path: Path, table: AnnotationTable) -> None:
    corners = np.array(table.corners)
    corners[1] = corners[1][[0, 2, 1, 3]]
    corners[4] = corners[4][[0, 0, 2, 2]]
    findings = check_annotations(replace(table, corners=corners))
    messages = [finding.message for finding in findings if finding.kind == "odd_quadrangle"]
    assert [message.rpartition(" with ")[2] for message in messages] == ["sides that cross", "no area"]
    assert not [finding for finding in check_annotations(table) if finding.kind == "odd_quadrangle"]


def test_statistics_count_angles(table: AnnotationTable) -> None:
    angles = statistics_of({"train": table}).sets["train"].distributions["box_angle"]
    assert angles.num_values == 4
    assert float(angles.quantiles[-1]) == pytest.approx(30, abs=1e-3)


def test_the_task_of_the_docs_trains_on_a_batch(table: AnnotationTable) -> None:
    (code,) = (code for code in blocks(ALL, "python") if code.startswith("# my_oriented.py"))
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    shapes = []

    def model(images: Any, boxes: Any, labels: Any) -> Tensor:
        shapes.extend((type(box), tuple(box.shape), len(label)) for box, label in zip(boxes, labels, strict=True))
        return torch.zeros(())

    module = DetectionDataModule(DrawnSource(train=table), oriented="rotated", batch_size=2)
    namespace["OrientedTask"](model).training_step(module.first_batch("train"), 0)
    assert shapes == [(Tensor, (3, 5), 3)] * 2
