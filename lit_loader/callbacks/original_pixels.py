"""Conversion of coordinates in a model's input image to pixels of the image file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import tv_tensors

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.masks import run_lengths
from lit_loader.callbacks.prediction_files import Prediction
from lit_loader.images import ImageReading
from lit_loader.seeding import sample_key
from lit_loader.transforms import ScheduledTransform

_Size = tuple[int, int]  # height and width
_Pair = tuple[float, float]  # along x and y
_TINY_SIDE = 4  # pixels
_REMEDY = "keep, resize or letterbox the image"
# A flip with probability 0.5 stays unnoticed in one of 128 runs.
_NUM_FIRST_PROBES = 8
_TOLERANCE = 0.1  # pixels


@dataclass(frozen=True)
class Placement:
    """Position of an image file's pixels in the model's input: ``input = original * scale + offset``.

    Attributes:
        size: Height and width of the original, upright image.
        scale: Scale along x and y.
        offset: Offset along x and y, in pixels of the input.
    """

    size: _Size
    scale: _Pair = (1.0, 1.0)
    offset: _Pair = (0.0, 0.0)

    def points(self, points: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Convert points ``(..., 2)``, x and y, from the input to pixels of the original."""
        return ((points.astype(np.float64) - self.offset) / self.scale).astype(np.float32)

    def boxes(self, boxes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Convert xyxy boxes ``(N, 4)`` from the input to pixels of the original, and clip them to it."""
        height, width = self.size
        corners = self.points(boxes.reshape(-1, 2, 2)).reshape(-1, 4)
        return corners.clip(0, np.array([width, height, width, height], dtype=np.float32))

    def mask(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Resample a mask ``(H, W)`` of the input to the size of the original, by the nearest pixel."""
        height, width = self.size
        if mask.shape == self.size and self.scale == (1.0, 1.0) and self.offset == (0.0, 0.0):
            return mask
        columns = np.floor((np.arange(width) + 0.5) * self.scale[0] + self.offset[0]).astype(np.int64)
        rows = np.floor((np.arange(height) + 0.5) * self.scale[1] + self.offset[1]).astype(np.int64)
        # Pixels of the original that the transforms cropped away have no value in the input; they stay False.
        inside = np.ix_((rows >= 0) & (rows < mask.shape[0]), (columns >= 0) & (columns < mask.shape[1]))
        resampled = np.zeros(self.size, dtype=np.bool_)
        resampled[inside] = mask[np.ix_(rows[inside[0][:, 0]], columns[inside[1][0]])]
        return resampled


class Placements:
    """Placements of a dataset's images by its transforms, which must not be random.

    For each image size, a blank image with two boxes is transformed: the first shows scale and offset, the second
    whether the transforms rotate or mirror. For the first size it is done several times, which shows random transforms.

    Args:
        dataset: Dataset that may have ``transforms`` of ``(image, target)``, and ``cache`` and ``reading`` like
            `DetectionDataset`.
        table: Table of its samples.
        name: Name of the argument with the transforms, for messages.
    """

    def __init__(self, dataset: Any, table: AnnotationTable, *, name: str = "predict_transforms") -> None:
        self._dataset = dataset
        self._table = table
        self._name = name
        # By size of the decoded image: the transformed size, and scale and offset of its pixels.
        self._transform_by_size: dict[_Size, tuple[_Size, _Pair, _Pair]] = {}

    def find(self, row: int, input_size: _Size) -> Placement:
        """Return the placement of an image.

        Args:
            row: Row of the sample.
            input_size: Height and width of the model's input.

        Raises:
            ValueError: If the transforms turn a blank image of the original's size into one of another size.
        """
        table_size = (int(self._table.heights[row]), int(self._table.widths[row]))
        # The usual case without transforms: the file need not be opened.
        if table_size == input_size and self._transform(input_size) == (input_size, (1.0, 1.0), (0.0, 0.0)):
            return Placement(input_size)
        original, decoded = self.sizes(row)
        transformed, scale, offset = self._transform(decoded)
        if transformed != input_size:
            raise ValueError(
                f"{self._table.image_path(row)}: predictions cannot be converted to the image's own pixels: "
                f"{self._name} turn a blank image of height and width {decoded} into {transformed}, the input "
                f"has {input_size}; give {self._name} that are not random, and {_REMEDY}"
            )
        # A cache may hold a smaller image than the file.
        scale_x = scale[0] * decoded[1] / original[1]
        scale_y = scale[1] * decoded[0] / original[0]
        return Placement(original, (scale_x, scale_y), offset)

    def sizes(self, row: int) -> tuple[_Size, _Size]:
        """Return height and width of the original image, and of the decoded one that the transforms receive."""
        regions = self._table.regions
        # The region of a tile is its image; a region of zeros is a whole file.
        if regions is not None and regions[row].any():
            width, height = (regions[row, 2:] - regions[row, :2]).tolist()
            return (height, width), (height, width)
        path = self._table.image_path(row)
        cache = getattr(self._dataset, "cache", None)
        if cache is not None:
            image, original_size = cache.open(row)
            return original_size[::-1], image.size
        # The header decides: the sizes in the table are the annotations', which may be wrong.
        size = (getattr(self._dataset, "reading", None) or ImageReading()).size(path)
        return size, size

    def _transform(self, size: _Size) -> tuple[_Size, _Pair, _Pair]:
        """Return the size of a transformed image, and scale and offset of its pixels, for an image of a size."""
        transforms = getattr(self._dataset, "transforms", None)
        if transforms is None:
            return size, (1.0, 1.0), (0.0, 0.0)
        if size not in self._transform_by_size:
            # torchvision's random transforms draw from the default generator even if their outcome is certain.
            with torch.random.fork_rng(devices=[]):
                self._transform_by_size[size] = self._measure(size)
        return self._transform_by_size[size]

    def _measure(self, size: _Size) -> tuple[_Size, _Pair, _Pair]:
        """Transform blank images of a size to find the result of `_transform`.

        Raises:
            ValueError: The transforms do not scale and move every image of this size in the same way.
        """
        height, width = size
        # Not a box of the whole image, which would be clipped if the transforms crop. The second is in the first, so
        # that a crop which keeps that one keeps this one, and off the centre and the diagonal.
        corners = torch.tensor(
            [
                [width / 4, height / 4, width * 3 / 4, height * 3 / 4],
                [width / 4, height / 4, width * 11 / 16, height * 5 / 8],
            ]
        )
        # In a tiny image those boxes may be smaller than `min_box_size`.
        if min(size) < _TINY_SIDE:
            corners = torch.tensor([[0.0, 0.0, width, height]])
        transformed, boxes = self._probe(corners, size)
        if not len(boxes):
            rule = f"{self._name} dropped a box in the middle of a blank {width}x{height} image"
            raise ValueError(f"{rule}; give {self._name} that {_REMEDY}")
        x1, y1, x2, y2 = corners[0].double().tolist()
        new_x1, new_y1, new_x2, new_y2 = boxes[0].tolist()
        scale = (new_x2 - new_x1) / (x2 - x1), (new_y2 - new_y1) / (y2 - y1)
        offset = (new_x1 - x1 * scale[0], new_y1 - y1 * scale[1])
        pairs = torch.tensor([scale * 2, offset * 2], dtype=torch.float64)
        expected = corners.double() * pairs[0] + pairs[1]
        probes = [(transformed, boxes)]
        # Other sizes get the same transforms, so one probe is enough for them.
        if not self._transform_by_size:
            probes += [self._probe(corners, size) for _ in range(_NUM_FIRST_PROBES - 1)]
        for new_size, new_boxes in probes:
            # Only the smaller box can be dropped, as smaller than `min_box_size`; it then tells nothing.
            num_boxes = len(new_boxes)
            is_moved = num_boxes > 0 and bool((new_boxes - expected[:num_boxes]).abs().max() > _TOLERANCE)
            if is_moved or new_size != transformed:
                raise ValueError(
                    f"predictions cannot be converted to the images' own pixels: {self._name} place boxes of blank "
                    f"{width}x{height} images differently; give {self._name} that are not random, do not rotate or "
                    f"mirror, and {_REMEDY}"
                )
        return transformed, scale, offset

    def _probe(self, corners: Tensor, size: _Size) -> tuple[_Size, Tensor]:
        """Transform a blank image with some boxes; return the new size and its boxes, float64 ``(N, 4)``."""
        # All fields of a target of `DetectionDataset`, because transforms may expect a row in each.
        names = (*getattr(self._dataset, "extra_fields", ()), *getattr(self._dataset, "attributes", ()))
        target: dict[str, Any] = {
            "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=size),
            "labels": torch.ones(len(corners), dtype=torch.int64),
            "area": (corners[:, 2:] - corners[:, :2]).prod(dim=1),
            "image_id": 0,
            "is_duplicate": False,
            **{name: torch.zeros(len(corners), dtype=torch.int64) for name in ("iscrowd", *names)},
        }
        transforms = self._dataset.transforms
        if isinstance(transforms, ScheduledTransform):
            # Predictions are made in epoch 0. The draws of a probe stay random, to notice a transform that draws.
            with sample_key():
                transforms = transforms.current()
        image: Any = tv_tensors.Image(torch.zeros(3, *size, dtype=torch.uint8))
        if transforms is not None:
            image, target = transforms(image, target)
        boxes = torch.as_tensor(target["boxes"]).as_subclass(torch.Tensor).double()
        return (int(image.shape[-2]), int(image.shape[-1])), boxes


def original_detections(
    detections: Mapping[str, Any],
    placement: Placement,
    *,
    first_label: int,
    attributes: Sequence[str] = (),
    min_score: float = 0.0,
) -> Prediction:
    """Convert the detections in an image from the model's input to pixels of the original.

    Args:
        detections: ``boxes`` ``(n, 4)``, ``labels`` and ``scores`` ``(n,)``; optionally ``masks`` ``(n, H, W)`` or
            ``(n, 1, H, W)``, bool, probabilities or integers, ``keypoints`` ``(n, K, 2)``, ``keypoint_scores``
            ``(n, K)``, and attributes ``(n,)``. Only tensors are read.
        placement: Placement of the image.
        first_label: Label of the first class.
        attributes: Names of attributes to convert, if the detections have them.
        min_score: Detections with lower scores are left out.
    """
    tensors = {name: value for name, value in detections.items() if isinstance(value, Tensor)}
    values = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    is_selected = values["scores"] >= min_score
    # `image_id` is a 0-d tensor, which has no row for each object.
    values = {name: value[is_selected] if value.ndim else value for name, value in values.items()}
    masks = None
    if "masks" in values:
        pixels = values["masks"].reshape(-1, *values["masks"].shape[-2:])
        if pixels.dtype != np.bool_:
            pixels = pixels > (0.5 if pixels.dtype.kind == "f" else 0)
        # Run lengths, because the masks of a whole set would not fit into memory.
        masks = [run_lengths(placement.mask(mask)) for mask in pixels]
    return Prediction(
        size=placement.size,
        labels=values["labels"].astype(np.int64) - first_label,
        scores=values["scores"].astype(np.float32),
        boxes=placement.boxes(values["boxes"]),
        keypoints=placement.points(values["keypoints"]) if "keypoints" in values else None,
        keypoint_scores=values.get("keypoint_scores"),
        attributes={name: values[name] for name in attributes if name in values},
        masks=masks,
    )
