"""Drawn samples with a colour for every mark, and checks of the marks in the pixels of a result."""

from __future__ import annotations

import functools

import torch
from torchvision import tv_tensors

from lit_loader.images.views import points_on_canvas

# Two objects of three marks: left, right and middle. Pure hues on grey boxes on black: a resampled pixel's
# excess over its smallest channel is then the share of one mark, whatever was blended into it.
HUES = torch.tensor([[[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[1, 1, 0], [0, 1, 1], [1, 0, 1]]]).float()
BOXES = [[12, 10, 62, 60], [78, 48, 138, 98]]
# Sub-pixel centres of the marks, inside of their boxes.
MARKS = [[[24.3, 25.6], [49.5, 27.2], [37.8, 47.1]], [[93.4, 64.5], [122.6, 61.3], [109.2, 84.7]]]
PAIRS = ((0, 1),)
RADIUS = 4.5
GREY = 0.4


@functools.cache
def _pixels(objects, height, width):
    fine = 8
    pixels = torch.zeros((3, height, width))
    for row in objects:
        x1, y1, x2, y2 = BOXES[row]
        pixels[:, y1:y2, x1:x2] = GREY
    ys, xs = ((torch.arange(side * fine) + 0.5) / fine for side in (height, width))
    for row in objects:
        for hue, (x, y) in zip(HUES[row], MARKS[row], strict=True):
            disc = ((xs[None] - x) ** 2 + (ys[:, None] - y) ** 2 < RADIUS**2).float()
            share = torch.nn.functional.avg_pool2d(disc[None, None], fine)[0]
            pixels = pixels * (1 - share) + share * hue[:, None, None]
    return pixels


def draw(*, objects=(0, 1), height=110, width=150, float_image=False):
    """Return ``(image, target)`` with marks drawn antialiased, so that a centroid is its centre."""
    pixels = _pixels(objects, height, width)
    boxes = torch.tensor([BOXES[row] for row in objects], dtype=torch.float32).reshape(-1, 4)
    points = torch.tensor([MARKS[row] for row in objects], dtype=torch.float32).reshape(-1, 3, 2)
    target = {
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
        "labels": torch.tensor(objects, dtype=torch.int64) + 1,
        "keypoints": tv_tensors.KeyPoints(points, canvas_size=(height, width)),
        "visibility": torch.full((len(objects), 3), 2, dtype=torch.uint8),
        "image_id": 7,
        "area": (boxes[:, 2:] - boxes[:, :2]).prod(dim=1),
    }
    image = pixels.clone() if float_image else (pixels * 255).round().to(torch.uint8)
    return tv_tensors.Image(image), target


def shares(image):
    """Return how much of each mark's hue every pixel holds, ``(2, 3, H, W)``, and how grey it is."""
    plain = image.as_subclass(torch.Tensor).float() / (255 if image.dtype == torch.uint8 else 1)
    grey = plain.amin(dim=0)
    excess = plain - grey
    strength = excess.amax(dim=0)
    close = ((excess - strength * HUES[..., None, None]).abs() < 0.25 * strength + 0.02).all(dim=2)
    return close * strength * (strength > 0.06), grey


def check_marks(image, target, *, tolerance, mirrors=0):
    """Compare points and visibility with the marks' centroids; return how many marks were seen whole.

    After an odd number of ``mirrors`` the left point is the mark that was drawn right, because left and right
    exchange their names in a mirror.
    """
    size = tuple(image.shape[-2:])
    assert target["keypoints"].canvas_size == size
    assert target["keypoints"].dtype == torch.float32
    assert target["visibility"].dtype == torch.uint8
    image_shares, _ = shares(image)
    ys, xs = (torch.arange(side) + 0.5 for side in size)
    seen = 0
    for row, label in enumerate(target["labels"].tolist()):
        points = target["keypoints"][row].as_subclass(torch.Tensor)
        order = [1, 0, 2] if mirrors % 2 else [0, 1, 2]
        full_mass = expected_mass(points, label - 1)
        for position, (mark, (x, y)) in enumerate(zip(order, points.tolist(), strict=True)):
            share = image_shares[label - 1, mark]
            mass = float(share.sum())
            visible = int(target["visibility"][row, position])
            if mass > 0.95 * full_mass:
                centre = float((share * xs).sum() / mass), float((share * ys[:, None]).sum() / mass)
                off = max(abs(centre[0] - x), abs(centre[1] - y))
                assert off <= tolerance, f"object {label}, point {position} at {(x, y)}, its mark at {centre}"
                assert visible == 2
                seen += 1
            # A mark cut by the rim: its centre is inside just where more than half of it is.
            elif mass > 0.65 * full_mass:
                assert visible == 2
            elif mass < 0.35 * full_mass:
                assert visible == 0
            assert visible == 2 * int(points_on_canvas(torch.tensor([x, y]), size)) or mass < 0.65 * full_mass
    return seen


def expected_mass(points, row):
    """Return a whole mark's sum in the result: its area, scaled as the triangle of the three points is."""
    original_points = torch.tensor(MARKS[row])
    scale = _triangle(points) / _triangle(original_points)
    return float(torch.pi * RADIUS**2 * scale)


def _triangle(points):
    first = points[1] - points[0]
    second = points[2] - points[0]
    return (first[0] * second[1] - first[1] * second[0]).abs()


def check_boxes(image, target, *, tolerance, turned=False, window=4):
    """Compare each box, clipped to the canvas, with the extent of the marks drawn in and around it.

    A turned box that is cut by the rim is only seen to hold its pixels: its corner may be beyond.
    """
    coloured, grey = shares(image)
    height, width = image.shape[-2:]
    filled = (grey > GREY / 2) | (coloured.amax(dim=(0, 1)) > 0.5)
    for box in target["boxes"].as_subclass(torch.Tensor):
        cut = torch.stack([box[0].clamp(0), box[1].clamp(0), box[2].clamp(max=width), box[3].clamp(max=height)])
        x1, y1 = (cut[:2] - window).floor().clamp(min=0).int().tolist()
        x2, y2 = (cut[2:] + window).ceil().int().tolist()
        near = filled[y1:y2, x1:x2].nonzero()
        assert len(near), "no box is drawn where the target has one"
        top, left = (near.amin(dim=0) + torch.tensor([y1, x1])).tolist()
        bottom, right = (near.amax(dim=0) + torch.tensor([y1 + 1, x1 + 1])).tolist()
        off = (torch.tensor([left, top, right, bottom]) - cut) * torch.tensor([-1, -1, 1, 1])
        at_rim = turned and bool((cut[:2] <= 0).any() or cut[2] >= width or cut[3] >= height)
        off = off.max() if at_rim else off.abs().max()
        assert off <= tolerance, f"box {cut.tolist()}, drawn at {[left, top, right, bottom]}"
