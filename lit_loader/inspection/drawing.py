"""Pictures of annotated images: a row of a table with boxes, masks, points, class names and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision import tv_tensors
from torchvision.utils import draw_keypoints

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.quadrangles import enclosing_boxes
from lit_loader.datamodules.pictures import LONGER_SIDE, class_colours, draw_fitted_objects, fit_canvas, label_texts
from lit_loader.datamodules.text_drawing import draw_texts, font_for, short_text, wrapped_text
from lit_loader.errors import ImageError
from lit_loader.foundation.escaping import printable
from lit_loader.images import LazyImage
from lit_loader.images.reading import ImageReading
from lit_loader.transforms.flips import RandomHorizontalFlip
from lit_loader.types import IndexArray

__all__ = ["draw_image", "draw_message", "draw_mirrored"]

_FLAGS: Final = ("difficult", "truncated", "occluded", "crowd")
# Colour of objects that are not highlighted, if others are.
_PALE: Final = "#b4b4b4"
_TILE_COLOUR: Final = 208
_SINGLE_PRECISION: Final = (-1e30, 1e30)
# Bounds of the drawing time and of the memory for masks, whatever a file contains.
_MAX_OBJECTS: Final = 1000
_MAX_MASK_BYTES: Final = 2**27
# Lines join the mirror pairs of objects with at most this many points; the lines of a dense mesh would cover a face.
_MAX_PAIRED_POINTS: Final = 20
_MAX_NAMED_POINTS: Final = 20
_MAX_NAME_LENGTH: Final = 18
# Pixels of the font on a canvas of any size, because a large canvas has many points.
_NAME_SIZE: Final = 12
# Colours of points without a pair, and of the first and second points of pairs.
_SIDE_COLOURS: Final = ("#ffffff", "#4363d8", "#f58231")
_STRIP_COLOUR: Final = "#282828"
# Radius of a point with a name, and pixels between an object and its mirror image.
_NAMED_RADIUS: Final = 4
_GAP: Final = 6
# Margin around an object and its points, as a share of the longer side.
_OBJECT_MARGIN: Final = 0.2


def draw_image(
    table: AnnotationTable,
    row: int,
    *,
    highlighted: Sequence[int] = (),
    numbered: bool = False,
    longer_side: int = LONGER_SIDE,
    reading: ImageReading = ImageReading(),
) -> Tensor:
    """Return an image of a table with its objects drawn, uint8 ``(3, h, w)``.

    Boxes, masks and names have the colour of the class. In a table with oriented boxes the first side of each box is
    dashed. Visible points are green, hidden points orange; absent points, and points outside the image, are not drawn.
    White lines join points along the skeleton, without one those that are each other's mirror image. If all objects
    fill the image, as in a classification set, a strip above it names their classes. JPEG files are shrunk while they
    are decoded. An image that cannot be read becomes a grey tile with the reason.

    Args:
        table: The annotations.
        row: Row of the image in the table.
        highlighted: Rows of objects in the table that keep their colours and names; the others become grey. Empty for
            all.
        numbered: Begin each name with the object's number in the image, from 0.
        longer_side: Larger of height and width of the image in the result, in pixels.
        reading: Settings for reading image files.

    Raises:
        IndexError: If the table has no such row.
    """
    rows = table.objects(row)
    try:
        image = _open(table, row, reading.for_table(table))
        height, width = image.size
        canvas = _read(image, longer_side)
    except ImageError as error:
        return draw_message(str(error), longer_side=longer_side)
    objects = _drawn_objects(table, rows, highlighted, canvas)
    texts = _texts(table, objects, numbered=numbered)
    colours = class_colours(torch.from_numpy(table.labels[objects]))
    if len(highlighted):
        is_highlighted = np.isin(objects, highlighted)
        texts = [text if keep else "" for text, keep in zip(texts, is_highlighted, strict=True)]
        colours = [colour if keep else _PALE for colour, keep in zip(colours, is_highlighted, strict=True)]
    if _fill_image(table, objects, width=width, height=height):
        return _with_strip(canvas, texts, colours)
    fields = _fields(table, row, objects, canvas, size=(width, height))
    pairs = table.flip_pairs if len(table.keypoint_names) <= _MAX_PAIRED_POINTS else ()
    return draw_fitted_objects(canvas, fields, texts=texts, colours=colours, lines=table.skeleton or pairs)


def draw_mirrored(
    table: AnnotationTable,
    object_row: int,
    *,
    flip_pairs: Sequence[tuple[int, int]] | None = None,
    longer_side: int | None = None,
    reading: ImageReading = ImageReading(),
) -> Tensor:
    """Return an object with the names of its points, and right of it its mirror image, uint8 ``(3, h, w)``.

    A horizontal flip of training makes the mirror image, and exchanges the points of each pair. If the pairs are right,
    the mirrored names fit the mirrored object: the left eye of a face is on the same side in both halves. The first
    points of the pairs are blue, the second ones orange, and points without a pair white; absent points, and points
    outside the image, are not drawn. White lines join points along the skeleton. More than 20 points have their
    positions as names.

    Args:
        table: The annotations, with points.
        object_row: Row of the object in the table.
        flip_pairs: Positions of points that the flip exchanges; None for the table's.
        longer_side: Larger of height and width of each half, in pixels, without the line above it; None for 448, or 896
            with more than 20 points.
        reading: Settings for reading image files.

    Raises:
        IndexError: If the table has no such object.
        ValueError: If the table has no points, or a pair is not in it.
    """
    if table.keypoints is None:
        raise ValueError(f"{table!r} has no points; read it with a keypoint schema")
    if not 0 <= object_row < table.num_objects:
        raise IndexError(f"object_row={object_row} must be in [0, {table.num_objects})")
    row = int(np.searchsorted(table.offsets, object_row, side="right")) - 1
    if longer_side is None:
        longer_side = LONGER_SIDE if len(table.keypoint_names) <= _MAX_NAMED_POINTS else 2 * LONGER_SIDE
    try:
        image = _open(table, row, reading.for_table(table))
        height, width = image.size
        region = _region_of(table, object_row, width=width, height=height)
        canvas = _read(image.cropped(region), longer_side)
    except ImageError as error:
        return draw_message(str(error), longer_side=longer_side)
    size = (region[2] - region[0], region[3] - region[1])
    target = _points_in(table, np.array([object_row]), canvas, size=size, corner=region[:2])
    target["keypoints"] = tv_tensors.KeyPoints(target["keypoints"], canvas_size=canvas.shape[-2:])
    flip_pairs = table.flip_pairs if flip_pairs is None else flip_pairs
    flip = RandomHorizontalFlip(p=1.0, flip_pairs=flip_pairs)
    # Training's own flip, which draws a number; the training that follows must not notice.
    with torch.random.fork_rng(devices=[]):
        mirrored = flip(tv_tensors.Image(canvas), target)
    halves = [
        _with_strip(_with_names(table, half, fields, flip_pairs), [text], [_STRIP_COLOUR])
        for text, (half, fields) in {"as annotated": (canvas, target), "mirrored": mirrored}.items()
    ]
    gap = torch.full((3, halves[0].shape[1], _GAP), 255, dtype=torch.uint8)
    return torch.cat([halves[0], gap, halves[1]], dim=2)


def draw_message(message: str, *, longer_side: int = LONGER_SIDE) -> Tensor:
    """Return a grey tile with a text, uint8 ``(3, h, w)``, to show instead of an image that cannot be read.

    Args:
        message: The text, wrapped and cut to the size of the tile.
        longer_side: Width of the tile in pixels.
    """
    height = max(1, longer_side * 3 // 4)
    picture = Image.new("RGB", (longer_side, height), (_TILE_COLOUR,) * 3)
    font = font_for([message], max(12, longer_side // 32))
    line_height = int(font.getbbox("Ag")[3]) + 4
    lines = wrapped_text(message, font, longer_side - 24, max_lines=max(1, (height - 24) // line_height))
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        draw.text((12, 12 + number * line_height), line, fill="black", font=font)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _open(table: AnnotationTable, row: int, reading: ImageReading) -> LazyImage:
    """Open the image of a row, or the region of its file that the row describes.

    Raises:
        ImageError: If the file cannot be read, or the region is not inside it.
    """
    # Text, because readings of tables that are not files look up rows by such paths.
    path = f"{table.root}/{table.image_paths[row]}"
    image = reading.open(path)
    # A region of zeros is the whole file.
    if table.regions is None or not table.regions[row].any():
        return image
    x1, y1, x2, y2 = table.regions[row].tolist()
    height, width = image.size
    if not (x1 < x2 <= width and y1 < y2 <= height):
        corners = f"{x1}, {y1}, {x2}, {y2} (left, top, right, bottom)"
        raise ImageError(f"{path}: the region {corners} is not inside the image, which is {width}x{height}")
    return image.cropped((x1, y1, x2, y2))


def _read(image: LazyImage, longer_side: int) -> Tensor:
    """Read an image as a canvas, uint8 ``(3, h, w)``.

    Raises:
        ImageError: If it cannot be decoded.
    """
    height, width = image.size
    zoom = longer_side / max(height, width)
    # Only then is less decoded; a small image is enlarged later, by whole pixels.
    if zoom < 1:
        image = image.resized((max(1, round(height * zoom)), max(1, round(width * zoom))))
    return fit_canvas(image.read(), longer_side)[0]


def _region_of(table: AnnotationTable, object_row: int, *, width: int, height: int) -> tuple[int, int, int, int]:
    """Return the region of an image that shows an object with its points: left, top, right, bottom in pixels."""
    assert table.keypoints is not None
    assert table.visibility is not None
    points = table.keypoints[object_row][table.visibility[object_row] > 0]
    corners = np.concatenate([table.boxes[object_row].reshape(2, 2), points]).astype(np.float64)
    limits = np.array([width, height])
    # Corners of a broken file may be anywhere.
    corners = np.clip(np.nan_to_num(corners), 0, limits)
    low = corners.min(axis=0)
    high = corners.max(axis=0)
    margin = _OBJECT_MARGIN * (high - low).max()
    x_min, y_min = np.floor(np.clip(low - margin, 0, limits - 1)).astype(int).tolist()
    x_max, y_max = np.ceil(np.clip(high + margin, [x_min + 1, y_min + 1], limits)).astype(int).tolist()
    return x_min, y_min, x_max, y_max


def _with_names(
    table: AnnotationTable, canvas: Tensor, target: Mapping[str, Tensor], flip_pairs: Sequence[tuple[int, int]]
) -> Tensor:
    """Return a canvas with the points ``(1, K, 2)`` of an object, in the colours of their sides, and their names."""
    points = target["keypoints"].as_subclass(Tensor)
    visibility = target["visibility"]
    num_points = points.shape[1]
    sides = torch.zeros(num_points, dtype=torch.int64)
    for pair in flip_pairs:
        sides[list(pair)] = torch.tensor([1, 2])
    fields = {"keypoints": points, "visibility": visibility}
    # Draw the lines here. Larger dots will cover its dots, whose colours show the visibility.
    canvas = draw_fitted_objects(canvas.as_subclass(Tensor), fields, texts=[], colours=[], lines=table.skeleton)
    is_present = visibility > 0
    for side, colour in enumerate(_SIDE_COLOURS):
        is_drawn = is_present & (sides == side)
        if is_drawn.any():
            canvas = draw_keypoints(canvas, points, colors=colour, radius=_NAMED_RADIUS, visibility=is_drawn)
    present = is_present[0].nonzero()[:, 0].tolist()
    names = table.keypoint_names if num_points <= _MAX_NAMED_POINTS else tuple(map(str, range(num_points)))
    corners = points[0, present].repeat(1, 2) + _NAMED_RADIUS * torch.tensor([-1, -1, 1, 1])
    texts = [_one_line(short_text(names[position], _MAX_NAME_LENGTH)) for position in present]
    text_colours = [_SIDE_COLOURS[sides[position]] for position in present]
    return draw_texts(canvas, corners, texts, text_colours, font_size=_NAME_SIZE)


def _drawn_objects(table: AnnotationTable, rows: slice, highlighted: Sequence[int], canvas: Tensor) -> IndexArray:
    """Return the rows of the objects to draw: the largest if there are too many, highlighted ones last, on top."""
    objects = np.arange(rows.start, rows.stop)
    limit = _MAX_OBJECTS
    if table.masks is not None:
        limit = min(limit, max(1, _MAX_MASK_BYTES // (canvas.shape[1] * canvas.shape[2])))
    is_highlighted = np.isin(objects, highlighted)
    if len(objects) > limit:
        boxes = table.boxes[rows].astype(np.float64)
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        # Ascending, so that the last ones are highlighted or large.
        objects = np.sort(objects[np.lexsort((areas, is_highlighted))[-limit:]])
        is_highlighted = np.isin(objects, highlighted)
    return objects[np.argsort(is_highlighted, kind="stable")]


def _texts(table: AnnotationTable, objects: IndexArray, *, numbered: bool) -> list[str]:
    """Return the text of each object: number, class, attributes and flags."""
    attributes = {
        name: (torch.from_numpy(attribute.ids[objects]), attribute.names)
        for name, attribute in table.attributes.items()
    }
    texts = label_texts(torch.from_numpy(table.labels[objects]), table.class_names, attributes=attributes)
    for flag in _FLAGS:
        states = getattr(table, flag)[objects]
        texts = [f"{text}, {flag}" if state else text for text, state in zip(texts, states, strict=True)]
    if numbered and len(objects):
        first = table.objects(int(np.searchsorted(table.offsets, objects[0], side="right")) - 1).start
        texts = [f"{number - first} {text}" for number, text in zip(objects.tolist(), texts, strict=True)]
    return [_one_line(text) for text in texts]


def _fill_image(table: AnnotationTable, objects: IndexArray, *, width: int, height: int) -> bool:
    """Return True if all objects are the whole image, so that a box would show nothing."""
    boxes = table.boxes[objects]
    if not len(boxes) or (table.visibility is not None and table.visibility[objects].any()):
        return False
    has_masks = table.masks is not None and any(
        len(table.masks.polygons(row)) or table.masks.run_lengths(row) is not None for row in objects
    )
    covers_image = (boxes[:, :2] <= 0).all() and (boxes[:, 2:] >= (width, height)).all()
    return bool(covers_image) and not has_masks


def _fields(
    table: AnnotationTable, row: int, objects: IndexArray, canvas: Tensor, *, size: tuple[int, int]
) -> dict[str, Tensor]:
    """Return the boxes, masks and points of objects in pixels of the canvas.

    Args:
        table: The annotations.
        row: Row of the image.
        objects: Rows of the objects.
        canvas: ``(3, h, w)``.
        size: Width and height of the image that the annotations refer to.
    """
    height, width = canvas.shape[-2:]
    # In double precision, because coordinates of a broken file times the scale may be beyond single precision.
    scale = np.array([width / size[0], height / size[1]])
    limits = np.array([width, height])
    if table.corners is None and table.rotated_boxes is None:
        corners = np.clip(table.boxes[objects].reshape(-1, 2, 2) * scale, 0, limits).astype(np.float32)
        # Readers may keep boxes whose corners are exchanged, which torchvision refuses to draw.
        boxes = enclosing_boxes(corners)
    else:
        # Clipped corners would change the shape, so only sizes beyond single precision are cut.
        corners = (table.oriented_corners(objects) * scale).clip(*_SINGLE_PRECISION).astype(np.float32)
        boxes = corners.reshape(-1, 8)
    fields = {"boxes": torch.from_numpy(boxes)}
    if table.masks is not None:
        corner = (0, 0) if table.regions is None else (int(table.regions[row, 0]), int(table.regions[row, 1]))
        masks = np.zeros((len(objects), height, width), dtype=np.bool_)
        for mask, object_row in zip(masks, objects.tolist(), strict=True):
            mask[:] = table.masks.rasterize(
                object_row, height, width, scale=(float(scale[0]), float(scale[1])), corner=corner
            )
        fields["masks"] = torch.from_numpy(masks)
    if table.keypoints is not None:
        fields |= _points_in(table, objects, canvas, size=size)
    return fields


def _points_in(
    table: AnnotationTable,
    objects: IndexArray,
    canvas: Tensor,
    *,
    size: tuple[int, int],
    corner: tuple[int, int] = (0, 0),
) -> dict[str, Tensor]:
    """Return the points of objects in pixels of a canvas, and their visibility: 0 outside of it.

    Args:
        table: The annotations, with points.
        objects: Rows of the objects.
        canvas: ``(3, h, w)``.
        size: Width and height, in pixels of the image, of the region that the canvas shows.
        corner: Left and top of this region.
    """
    assert table.keypoints is not None
    assert table.visibility is not None
    limits = np.array([canvas.shape[2], canvas.shape[1]])
    points = (table.keypoints[objects] - np.array(corner)) * (limits / np.array(size))
    inside = ((points >= 0) & (points <= limits)).all(axis=2)
    return {
        "keypoints": torch.from_numpy(np.clip(points, 0, limits).astype(np.float32)),
        "visibility": torch.from_numpy(np.where(inside, table.visibility[objects], np.uint8(0))),
    }


def _with_strip(canvas: Tensor, texts: Sequence[str], colours: Sequence[str]) -> Tensor:
    """Return a canvas below a strip with texts, one in each line."""
    font_height = 8 + max(12, max(canvas.shape[-2:]) // 45)
    # Few lines, because an image may have many labels.
    num_lines = min(len(texts), 4)
    strip = torch.full((3, num_lines * font_height, canvas.shape[2]), 40, dtype=torch.uint8)
    return torch.cat([draw_texts(strip, None, list(texts), list(colours)), canvas], dim=1)


def _one_line(text: str) -> str:
    # A name may hold control characters, and Pillow cannot measure text with line breaks.
    return printable(text).replace("\n", "\\n")
