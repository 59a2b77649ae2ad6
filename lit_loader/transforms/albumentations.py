"""Pipelines of Albumentations on samples of this package, with rows kept aligned and draws by the sample's key."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from lit_loader.errors import SettingError
from lit_loader.seeding import sample_rng
from lit_loader.transforms.flips import FLIP_REMEDY, FlipPairs, check_flip_pairs
from lit_loader.transforms.moving import wrap
from lit_loader.transforms.oriented import is_oriented
from lit_loader.transforms.sanitize import DeclaredFields, check_rows
from lit_loader.transforms.visibility import UpdateVisibility, target_points

__all__ = ["AlbumentationsTransform"]

_BOX_FORMATS: Final = {"pascal_voc": "XYXY", "albumentations": "XYXY", "coco": "XYWH", "yolo": "CXCYWH"}
_NORMALIZED: Final = ("albumentations", "yolo")
# A small triangle (x, y) in each quadrant, in fractions of the image. A mirroring changes the orientation of all four.
# Shuffled tiles change only triangles on an edge of a tile, so a single triangle could not show the difference.
_CORNERS: Final = ((0.29, 0.34), (0.63, 0.27), (0.34, 0.67), (0.69, 0.61))
_PROBES: Final = np.array([[(x, y), (x + 0.05, y), (x, y + 0.05)] for x, y in _CORNERS])
_COUNT_REMEDY: Final = (
    "use a constant border (border_mode=cv2.BORDER_CONSTANT), keypoint_remapping_method='direct' in distortions, and "
    "no transform that splits objects"
)


class AlbumentationsTransform(nn.Module):
    """Apply a pipeline with Albumentations' signature to ``(image, target)``.

    The pipeline is called as ``transform(image=, bboxes=, masks=, keypoints=, ...)`` with numpy arrays, and its result
    is converted back. An object whose box the pipeline drops loses its row in every per-object field. In a target
    without ``boxes``, all masks, points and fields keep their rows.

    - Boxes have the format of the pipeline's ``bbox_params``. Each field in its ``label_fields`` receives row numbers,
      whatever its name. A box without area would be refused by Albumentations, so its object is dropped first.
    - Points have the format ``"xy"``, and ``remove_invisible=False``, so that their number does not change. Points
      outside the result become absent. Albumentations counts coordinates from the centre of the first pixel, and this
      package from its corner, so half a pixel is subtracted before and added after.
    - If the pipeline mirrors the image, ``flip_pairs`` swap left and right points.
    - In a target with boxes, an undeclared field with a first dimension is refused, as in `SanitizeObjects`.
    - A pipeline that can move pixels refuses ``tv_tensors`` other than ``boxes``, ``masks`` and ``keypoints``.
    - The pipeline gets a copy of the image, ``(H, W, C)`` in its dtype; a PIL image of mode P or 1 is converted to RGB.
      Its result may be a numpy array or, after ``ToTensorV2``, a tensor.

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
        per_image: Names of per-image fields in addition to ``PER_IMAGE_FIELDS``.

    Raises:
        ValueError: A name is in ``per_object`` and in ``per_image``, or from the call: a field is undeclared, or a
            per-object field does not have one row per box.
        SettingError: The pipeline's ``bbox_params`` or ``keypoint_params`` cannot be used, or from the call: the
            pipeline would leave a part of the sample behind, repeats objects, changes the number of points, or mirrors
            points without ``flip_pairs``.
    """

    def __init__(
        self,
        transform: Callable[..., dict[str, Any]],
        *,
        flip_pairs: FlipPairs | None = None,
        per_object: Sequence[str] = (),
        per_image: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.transform = transform
        self.flip_pairs = None if flip_pairs is None else check_flip_pairs(flip_pairs)
        self.fields = DeclaredFields(per_object, per_image)
        params = {name: processor.params for name, processor in getattr(transform, "processors", {}).items()}
        self._box_params = params.get("bboxes")
        self._point_params = params.get("keypoints")
        # Transforms of pixels alone have no target for boxes. Any other callable may move everything.
        self.moves = any("bboxes" in leaf.targets for leaf in _leaves(transform)) if _is_compose(transform) else True
        if self._box_params is not None and self._box_params.format not in _BOX_FORMATS:
            rule = f"must be one of {', '.join(_BOX_FORMATS)}"
            raise SettingError("bbox_params.format", self._box_params.format, rule)
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
        image, *further_elements = sample if isinstance(sample, tuple | list) else (sample,)
        if self.moves:
            self._check_others(further_elements)
        target = further_elements[0] if further_elements and isinstance(further_elements[0], Mapping) else None
        new_image, new_target = self._transform(image, target or {})
        if target is not None:
            further_elements[0] = new_target
        return (new_image, *further_elements) if isinstance(sample, tuple | list) else new_image

    def _check_others(self, further_elements: Sequence[Any]) -> None:
        """Raise an error if the elements after the image have a tensor that the pipeline would leave behind."""
        for position, value in enumerate(further_elements):
            for name in _names_of_tv_tensors(value, "target" if position == 0 else f"sample[{position + 1}]"):
                if name not in ("target['boxes']", "target['masks']", "target['keypoints']"):
                    remedy = "store boxes in target['boxes'], masks in target['masks'], points in target['keypoints']"
                    rule = f"moves pixels, so {name} would stay behind"
                    raise self._error(rule, f"{remedy}, or remove {name} before this transform")

    def _error(self, rule: str, remedy: str) -> SettingError:
        return SettingError("transform", type(self.transform).__name__, rule, remedy)

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
        arguments = {"image": _to_array(image), **self._empty_arguments()}
        if not self.moves:
            return _to_image(self._pipeline()(**arguments)["image"]), dict(target)
        height, width = arguments["image"].shape[:2]
        boxes = target.get("boxes")
        if is_oriented(boxes):
            rule = f"moves boxes along the axes, and these have the format {boxes.format.name}"
            raise self._error(rule, "leave out the transforms that move pixels, or use torchvision's transforms")
        masks = target.get("masks")
        points_and_visibility = target_points(target)
        object_fields = [] if boxes is None else self._object_fields(target)
        if boxes is not None:
            corners = _corners(boxes, (width, height))
            valid = (corners[:, 2:] > corners[:, :2]).all(axis=1)
            arguments |= self._box_arguments(corners[valid], np.flatnonzero(valid), (width, height))
        if masks is not None and len(masks):
            # OpenCV does not rotate bool arrays.
            dtype = torch.uint8 if masks.dtype is torch.bool else masks.dtype
            arguments["masks"] = np.array(masks.as_subclass(Tensor).to(dtype).numpy(), order="C")
        if points_and_visibility is not None:
            arguments |= self._point_arguments(points_and_visibility[0], (width, height))
        result = self._pipeline()(**arguments)
        new_image = _to_image(result["image"])
        size = tuple(new_image.shape[-2:])
        new_target = dict(target)
        if masks is not None:
            new_masks = [torch.as_tensor(mask) for mask in result["masks"]] if len(masks) else []
            stacked = torch.stack(new_masks) if new_masks else torch.zeros((0, *size))
            new_target["masks"] = tv_tensors.Mask(stacked.to(masks.dtype))
        if points_and_visibility is not None:
            points, visibility = self._points_of(result, *points_and_visibility)
            new_target["keypoints"] = tv_tensors.KeyPoints(points, canvas_size=size)
            new_target["visibility"] = visibility
        if boxes is not None:
            new_corners, rows = self._boxes_of(result, size)
            for name in object_fields:
                new_target[name] = _take(new_target[name], torch.from_numpy(rows))
            new_boxes = tv_tensors.BoundingBoxes(new_corners, format="XYXY", canvas_size=size)
            new_target["boxes"] = functional.convert_bounding_box_format(new_boxes, new_format=boxes.format)
        result_image, result_target = UpdateVisibility()(new_image, new_target)
        return result_image, result_target

    def _empty_arguments(self) -> dict[str, Any]:
        """Return empty boxes, points and label fields; Albumentations refuses a call without declared label fields."""
        arguments: dict[str, Any] = {}
        for name, params, num_columns in (("bboxes", self._box_params, 4), ("keypoints", self._point_params, 2)):
            if params is not None:
                arguments[name] = np.zeros((0, num_columns))
                arguments |= dict.fromkeys(params.label_fields or (), np.arange(0))
        return arguments

    def _object_fields(self, target: Mapping[str, Any]) -> list[str]:
        """Return the names of the per-object fields except the boxes."""
        names = [name for name in target if name != "boxes" and self.fields.is_per_object(name, target[name])]
        for name in names:
            check_rows(name, target[name], num_boxes=len(target["boxes"]))
        return names

    def _box_arguments(
        self, corners: npt.NDArray[np.float64], rows: npt.NDArray[np.int64], size: tuple[int, int]
    ) -> dict[str, Any]:
        """Return the boxes, and the row numbers in the label fields, as arguments of the pipeline."""
        if self._box_params is None:
            raise self._error(
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
        if not fields:
            return {"bboxes": np.column_stack([boxes, rows])}
        return {"bboxes": boxes, **dict.fromkeys(fields, rows)}

    def _boxes_of(self, result: Mapping[str, Any], size: Sequence[int]) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """Return the corners of the boxes in a result, float32 ``(N, 4)`` in pixels, and their row numbers."""
        assert self._box_params is not None
        fields = self._box_params.label_fields
        values = np.asarray(result["bboxes"], dtype=np.float64).reshape(-1, 4 if fields else 5)
        rows = np.asarray(result[fields[0]] if fields else values[:, 4]).astype(np.int64).reshape(-1)
        if len(set(rows.tolist())) < len(rows):
            raise self._error(f"repeats objects: expected each row once, got rows {rows.tolist()}", _COUNT_REMEDY)
        height, width = size
        scale = [width, height, width, height] if self._box_params.format in _NORMALIZED else [1, 1, 1, 1]
        pixels = torch.from_numpy(values[:, :4] * np.array(scale))
        kind = _BOX_FORMATS[self._box_params.format]
        boxes = tv_tensors.BoundingBoxes(pixels, format=kind, canvas_size=(height, width))
        corners = functional.convert_bounding_box_format(boxes, new_format="XYXY").as_subclass(Tensor)
        return corners.float(), rows

    def _point_arguments(self, points: Tensor, size: tuple[int, int]) -> dict[str, Any]:
        """Return the points, flattened, and the triangles that show a mirroring, as arguments of the pipeline."""
        if self._point_params is None:
            raise self._error(
                "has no keypoint_params, but moves pixels, so points would stay behind",
                "add keypoint_params=A.KeypointParams('xy', remove_invisible=False) to the A.Compose",
            )
        flat = points.as_subclass(Tensor).reshape(-1, 2).numpy().astype(np.float64) - 0.5
        keypoints = np.concatenate([flat, _PROBES.reshape(-1, 2) * np.array(size) - 0.5])
        labels = dict.fromkeys(self._point_params.label_fields or (), np.arange(len(keypoints)))
        return {"keypoints": keypoints, **labels}

    def _points_of(self, result: Mapping[str, Any], points: Tensor, visibility: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points of a result, float32 ``(N, K, 2)``, and their visibility, swapped if they are mirrored."""
        moved = np.asarray(result["keypoints"], dtype=np.float64)[:, :2] + 0.5
        num_points = points.shape[0] * points.shape[1]
        num_probes = _PROBES.size // 2
        if len(moved) != num_points + num_probes:
            expected = f"{num_points} of the target and {num_probes} that test for a mirroring"
            raise self._error(f"changes the number of points: expected {expected}, got {len(moved)}", _COUNT_REMEDY)
        new_points = torch.from_numpy(moved[:num_points]).float().reshape(points.shape)
        if not num_points or not self._is_mirrored(moved[num_points:]):
            return new_points, visibility
        if self.flip_pairs is None:
            rule = "but the pipeline mirrored a target with points, which may swap left and right"
            raise SettingError("flip_pairs", None, rule, FLIP_REMEDY)
        order = list(range(points.shape[1]))
        for first, second in self.flip_pairs:
            order[first] = second
            order[second] = first
        return new_points[:, order], visibility[:, order]

    def _is_mirrored(self, probes: npt.NDArray[np.float64]) -> bool:
        """Return True if the triangles, moved by the pipeline, have changed their orientation."""
        triangles = probes.reshape(_PROBES.shape)
        right = triangles[:, 1] - triangles[:, 0]
        below = triangles[:, 2] - triangles[:, 0]
        orientations = right[:, 0] * below[:, 1] - right[:, 1] * below[:, 0]
        if orientations.min() < 0 < orientations.max():
            rule = "mirrors only parts of the image, so it is not known whether left and right points swap"
            raise self._error(rule, "remove transforms that shuffle tiles (RandomGridShuffle) or fold the image")
        return bool(orientations.min() < 0)


def _is_compose(transform: Any) -> bool:
    return hasattr(transform, "transforms") or hasattr(transform, "targets")


def _leaves(transform: Any) -> Iterator[Any]:
    parts = getattr(transform, "transforms", None)
    if parts is None:
        yield transform
    for part in parts or ():
        yield from _leaves(part)


def _to_array(image: Any) -> npt.NDArray[Any]:
    """Return a copy of an image, ``(C, H, W)`` or PIL, as an array ``(H, W, C)``."""
    if isinstance(image, PIL.Image.Image) and image.mode in ("P", "1"):
        image = image.convert("RGB")  # mode P stores indices of colours, mode 1 bool
    if not isinstance(image, Tensor):
        return np.array(image)
    return np.array(image.as_subclass(Tensor).permute(1, 2, 0).numpy(), order="C")


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
    if isinstance(value, Tensor):
        return wrap(value.as_subclass(Tensor)[rows], like=value)
    if isinstance(value, np.ndarray):
        return value[rows.numpy()]
    return type(value)(value[row] for row in rows.tolist())


def _names_of_tv_tensors(value: Any, name: str) -> Iterator[str]:
    """Return the names of torchvision's tensors in a value, such as ``target['masks']``."""
    if isinstance(value, tv_tensors.TVTensor):
        yield name
    elif isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _names_of_tv_tensors(item, f"{name}[{key!r}]")
