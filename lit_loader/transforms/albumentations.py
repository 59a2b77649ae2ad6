"""Pipelines of Albumentations on samples of this package, with rows kept aligned and draws by the sample's key."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from lit_loader.errors import SettingError
from lit_loader.seeding import sample_rng
from lit_loader.transforms.flips import FLIP_REMEDY, FlipPairs, check_flip_pairs
from lit_loader.transforms.sanitize import PER_OBJECT_FIELDS
from lit_loader.transforms.visibility import UpdateVisibility, target_points

__all__ = ["AlbumentationsTransform"]

_BOX_FORMATS: Final = {"pascal_voc": "XYXY", "albumentations": "XYXY", "coco": "XYWH", "yolo": "CXCYWH"}
_NORMALIZED: Final = ("albumentations", "yolo")
# Corners of a right angle, in fractions of the image; a transform that mirrors changes its orientation.
_PROBE: Final = ((0.5, 0.5), (0.6, 0.5), (0.5, 0.6))


class AlbumentationsTransform(nn.Module):
    """Apply a pipeline with Albumentations' signature to ``(image, target)``.

    The pipeline is called as ``transform(image=, bboxes=, masks=, keypoints=, ...)`` with numpy arrays, and its result
    is converted back. An object whose box the pipeline drops loses its row in every per-object field.

    - Boxes have the format of the pipeline's ``bbox_params``. Each field in its ``label_fields`` receives row numbers,
      whatever its name. A box without area would be refused by Albumentations, so its object is dropped before.
    - Points have the format ``"xy"``, and ``remove_invisible=False``, so that their number does not change. Points
      outside the result become absent. Albumentations counts coordinates from the centre of the first pixel, and this
      package from its corner, so half a pixel is subtracted before and added after.
    - If the pipeline mirrors the image, ``flip_pairs`` swap left and right points.
    - The image is uint8 ``(H, W, C)``. The result may be a numpy array or, after ``ToTensorV2``, a tensor.

    Called as ``transform(image, target)``, ``transform((image, target))`` or ``transform(image)``; further elements
    pass through.

    Runs in: workers and threads; each thread has a copy of the pipeline, because its generators have a state.
    Determinism: the generators of the pipeline are set from `lit_loader.seeding.sample_rng` for each sample. All its
        transforms share one stream: with ``A.Compose(seed=...)`` each starts from the same seed, so that horizontal and
        vertical flips always occur together.

    Args:
        transform: An ``A.Compose``, or a callable with its signature.
        flip_pairs: Pairs of positions of points that a mirroring swaps; ``[]`` if there are none. With None, a mirrored
            target with points is refused.
        per_object: Names of per-object fields in addition to ``PER_OBJECT_FIELDS``.

    Raises:
        SettingError: The pipeline's ``bbox_params`` or ``keypoint_params`` cannot be used, or from the call: the target
            has boxes or points that the pipeline would leave behind.
    """

    def __init__(
        self,
        transform: Callable[..., dict[str, Any]],
        *,
        flip_pairs: FlipPairs | None = None,
        per_object: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.transform = transform
        self.flip_pairs = None if flip_pairs is None else check_flip_pairs(flip_pairs)
        self.per_object = frozenset(PER_OBJECT_FIELDS) | frozenset(per_object)
        params = {name: processor.params for name, processor in getattr(transform, "processors", {}).items()}
        self._box_params = params.get("bboxes")
        self._point_params = params.get("keypoints")
        # Transforms of pixels alone have no target for boxes. Any other callable may move everything.
        self._moves = any("bboxes" in leaf.targets for leaf in _leaves(transform)) if _is_compose(transform) else True
        if self._box_params is not None and self._box_params.format not in _BOX_FORMATS:
            formats = ", ".join(_BOX_FORMATS)
            raise SettingError("bbox_params.format", self._box_params.format, f"must be one of {formats}")
        if self._point_params is not None:
            if self._point_params.format != "xy":
                raise SettingError("keypoint_params.format", self._point_params.format, "must be 'xy'")
            if self._point_params.remove_invisible:
                rule = "would change the number of points; points outside the image become absent here"
                settings = {"keypoint_params.remove_invisible": False}
                raise SettingError("keypoint_params.remove_invisible", True, rule, settings=settings)
        self._copies = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copies": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _copies=threading.local())

    def forward(self, *inputs: Any) -> Any:
        """Transform a sample; the input is not modified."""
        sample = inputs if len(inputs) > 1 else inputs[0]
        if not isinstance(sample, tuple | list):
            return _to_image(self._pipeline()(image=_to_array(sample))["image"])
        image, target, *extras = sample
        if not isinstance(target, Mapping):
            return (_to_image(self._pipeline()(image=_to_array(image))["image"]), target, *extras)
        return (*self._transform(image, target), *extras)

    def _pipeline(self) -> Callable[..., dict[str, Any]]:
        """Return this thread's copy of the pipeline, with the generators of the present sample."""
        pipeline = getattr(self._copies, "pipeline", None)
        if pipeline is None:
            pipeline = copy.deepcopy(self.transform)
            self._copies.pipeline = pipeline
        if hasattr(pipeline, "set_random_state"):
            rng = sample_rng()
            pipeline.set_random_state(rng.numpy, rng.python)
        return pipeline

    def _transform(self, image: Any, target: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        pixels = _to_array(image)
        height, width = pixels.shape[:2]
        boxes = target.get("boxes")
        points_and_visibility = target_points(target)
        if not self._moves:
            return _to_image(self._pipeline()(image=pixels)["image"]), dict(target)
        arguments: dict[str, Any] = {"image": pixels}
        rows = np.arange(0 if boxes is None else len(boxes))
        if boxes is not None:
            corners = _corners(boxes, (width, height))
            rows = rows[(corners[:, 2:] > corners[:, :2]).all(axis=1)]
            arguments |= self._box_arguments(corners[rows], rows, (width, height))
        masks = target.get("masks")
        if masks is not None and len(masks):
            arguments["masks"] = np.ascontiguousarray(masks.as_subclass(Tensor).numpy())
        if points_and_visibility is not None:
            arguments |= self._point_arguments(points_and_visibility[0], (width, height))
        result = self._pipeline()(**arguments)
        new_image = _to_image(result["image"])
        size = tuple(new_image.shape[-2:])
        new_target = dict(target)
        if boxes is not None:
            new_corners, rows = self._boxes_of(result, size)
            for name, value in target.items():
                if name in self.per_object and name not in ("keypoints", "masks"):
                    new_target[name] = _take(value, torch.from_numpy(rows))
            new_boxes = tv_tensors.BoundingBoxes(new_corners, format="XYXY", canvas_size=size)
            new_target["boxes"] = functional.convert_bounding_box_format(new_boxes, new_format=boxes.format)
        row_index = torch.from_numpy(rows)
        if masks is not None:
            new_masks = [torch.as_tensor(mask) for mask in result.get("masks", ())]
            stacked = torch.stack(new_masks) if new_masks else torch.zeros((0, *size), dtype=masks.dtype)
            new_target["masks"] = tv_tensors.Mask(stacked[row_index])
        if points_and_visibility is not None:
            points, visibility = self._points_of(result, *points_and_visibility)
            new_target["keypoints"] = tv_tensors.KeyPoints(points[row_index], canvas_size=size)
            new_target["visibility"] = visibility[row_index]
        return UpdateVisibility()(new_image, new_target)  # type: ignore[no-any-return]

    def _box_arguments(
        self, corners: npt.NDArray[np.float64], rows: npt.NDArray[np.int64], size: tuple[int, int]
    ) -> dict[str, Any]:
        """Return the boxes, and the row numbers in the label fields, as arguments of the pipeline."""
        if self._box_params is None:
            raise SettingError(
                "transform",
                type(self.transform).__name__,
                "has no bbox_params, but moves pixels, so boxes would stay behind",
                "add bbox_params=A.BboxParams('pascal_voc', label_fields=['rows']) to the A.Compose",
            )
        kind = self._box_params.format
        xyxy = tv_tensors.BoundingBoxes(torch.from_numpy(corners), format="XYXY", canvas_size=size[::-1])
        boxes = functional.convert_bounding_box_format(xyxy, new_format=_BOX_FORMATS[kind]).as_subclass(Tensor).numpy()
        if kind in _NORMALIZED:
            boxes = boxes / np.array([*size, *size])
        fields = self._box_params.label_fields
        # Without a label field, Albumentations carries further columns along.
        return (
            {"bboxes": np.column_stack([boxes, rows])}
            if not fields
            else {"bboxes": boxes, **dict.fromkeys(fields, rows)}
        )

    def _boxes_of(self, result: Mapping[str, Any], size: Sequence[int]) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """Return the corners of the boxes in a result, float32 ``(N, 4)`` in pixels, and their row numbers."""
        assert self._box_params is not None
        fields = self._box_params.label_fields
        values = np.asarray(result["bboxes"], dtype=np.float64).reshape(-1, 4 if fields else 5)
        rows = np.asarray(result[fields[0]] if fields else values[:, 4]).astype(np.int64).reshape(-1)
        height, width = size
        scale = [width, height, width, height] if self._box_params.format in _NORMALIZED else [1, 1, 1, 1]
        boxes = tv_tensors.BoundingBoxes(
            torch.from_numpy(values[:, :4] * np.array(scale)),
            format=_BOX_FORMATS[self._box_params.format],
            canvas_size=(height, width),
        )
        corners = functional.convert_bounding_box_format(boxes, new_format="XYXY").as_subclass(Tensor)
        return corners.float(), rows

    def _point_arguments(self, points: Tensor, size: tuple[int, int]) -> dict[str, Any]:
        """Return the points, flattened, and the probe that shows a mirroring, as arguments of the pipeline."""
        if self._point_params is None:
            raise SettingError(
                "transform",
                type(self.transform).__name__,
                "has no keypoint_params, but moves pixels, so points would stay behind",
                "add keypoint_params=A.KeypointParams('xy', remove_invisible=False) to the A.Compose",
            )
        flat = points.as_subclass(Tensor).reshape(-1, 2).numpy().astype(np.float64) - 0.5
        keypoints = np.concatenate([flat, np.array(_PROBE) * np.array(size) - 0.5])
        return {
            "keypoints": keypoints,
            **dict.fromkeys(self._point_params.label_fields or (), np.arange(len(keypoints))),
        }

    def _points_of(self, result: Mapping[str, Any], points: Tensor, visibility: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points of a result, float32 ``(N, K, 2)``, and their visibility, swapped if they are mirrored."""
        moved = np.asarray(result["keypoints"], dtype=np.float64)[:, :2] + 0.5
        corner, right, below = moved[-len(_PROBE) :]
        a, b = right - corner
        c, d = below - corner
        new_points = torch.from_numpy(moved[: -len(_PROBE)]).float().reshape(points.shape)
        if a * d - b * c >= 0 or not points.shape[1]:
            return new_points, visibility
        if self.flip_pairs is None:
            rule = "but the pipeline mirrored a target with points, which may swap left and right"
            raise SettingError("flip_pairs", None, rule, FLIP_REMEDY)
        order = list(range(points.shape[1]))
        for first, second in self.flip_pairs:
            order[first], order[second] = second, first
        return new_points[:, order], visibility[:, order]


def _is_compose(transform: Any) -> bool:
    return hasattr(transform, "transforms") or hasattr(transform, "targets")


def _leaves(transform: Any) -> Iterator[Any]:
    parts = getattr(transform, "transforms", None)
    if parts is None:
        yield transform
    for part in parts or ():
        yield from _leaves(part)


def _to_array(image: Any) -> npt.NDArray[Any]:
    """Return an image, ``(C, H, W)`` or PIL, as an array ``(H, W, C)``."""
    if not isinstance(image, Tensor):
        return np.asarray(image)
    return np.ascontiguousarray(image.as_subclass(Tensor).permute(1, 2, 0).numpy())


def _to_image(pixels: Any) -> tv_tensors.Image:
    if isinstance(pixels, Tensor):
        return tv_tensors.Image(pixels)
    planes = torch.from_numpy(np.ascontiguousarray(pixels if pixels.ndim == 3 else pixels[..., None]))
    return tv_tensors.Image(planes.permute(2, 0, 1))


def _corners(boxes: tv_tensors.BoundingBoxes, size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Return boxes as corners, ``(N, 4)``, clamped to the image, which Albumentations asks for."""
    xyxy: Tensor = functional.convert_bounding_box_format(boxes, new_format="XYXY").as_subclass(Tensor)
    corners: npt.NDArray[np.float64] = xyxy.double().numpy()
    return np.clip(corners, 0, np.array([*size, *size]))


def _take(value: Any, rows: Tensor) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        return value[rows] if isinstance(value, Tensor) else value[rows.numpy()]
    return type(value)(value[row] for row in rows.tolist())
