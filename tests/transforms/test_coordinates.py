"""Coordinates change and change back, and the edges of the canvas are -1 and +1."""

from __future__ import annotations

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from lit_loader.transforms import denormalize_keypoints, normalize_keypoints, to_image_points

SIZE = (20, 40)


def test_the_outer_edges_are_minus_one_and_one():
    points = torch.tensor([[0.0, 0], [40, 20], [20, 10], [-10, 25]])
    assert normalize_keypoints(points, SIZE).tolist() == [[-1, -1], [1, 1], [0, 0], [-1.5, 1.5]]


@pytest.mark.parametrize("shape", [(2,), (5, 2), (3, 4, 2), (2, 3, 4, 2), (0, 5, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_denormalize_is_the_inverse(shape, dtype):
    torch.manual_seed(0)
    points = torch.rand(shape, dtype=dtype) * 50 - 5
    back = denormalize_keypoints(normalize_keypoints(points, SIZE), SIZE)
    assert back.dtype == dtype
    torch.testing.assert_close(back, points)


def test_normalized_points_do_not_depend_on_a_resize():
    points = tv_tensors.KeyPoints(torch.tensor([[3.0, 4], [30, 18]]), canvas_size=SIZE)
    resized = functional.resize(points, [70, 50])
    before, after = normalize_keypoints(points, SIZE), normalize_keypoints(resized, (70, 50))
    torch.testing.assert_close(before, after)
    assert type(before) is torch.Tensor


def test_corners_of_a_crop_are_corners_of_its_region():
    crops = torch.tensor([[10.0, 20, 30, 60], [-5, 0, 5, 10]])
    corners = torch.tensor([[0.0, 0], [40, 20], [20, 10]]).expand(2, 3, 2)
    assert to_image_points(corners, crops, SIZE).tolist() == [
        [[10, 20], [30, 60], [20, 40]],
        [[-5, 0], [5, 10], [0, 5]],
    ]
    assert to_image_points(corners[0], crops[0], SIZE).tolist()[1] == [30, 60]


@pytest.mark.parametrize("change", [normalize_keypoints, denormalize_keypoints])
def test_wrong_sizes_shapes_and_integers_are_refused(change):
    for size in ((20,), (20, 0), (1, 2, 3), (-4, 4)):
        with pytest.raises(ValueError, match=r"\(height, width\)"):
            change(torch.zeros(1, 2), size)
    with pytest.raises(ValueError, match=r"must be \(\.\.\., 2\)"):
        change(torch.zeros(1, 3), SIZE)
    with pytest.raises(TypeError, match="int64; convert"):
        change(torch.zeros((1, 2), dtype=torch.int64), SIZE)


@pytest.mark.parametrize("crop", [(4,), (3, 4), (2, 5)], ids=str)
def test_crops_that_do_not_fit_the_points_are_refused(crop):
    with pytest.raises(ValueError, match=r"does not fit points \(2, 5, 2\)"):
        to_image_points(torch.zeros(2, 5, 2), torch.zeros(crop), SIZE)
