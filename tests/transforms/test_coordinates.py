"""Points of a crop are found again in the image."""

from __future__ import annotations

import pytest
import torch

from lit_loader.transforms import to_image_points

SIZE = (20, 40)


def test_corners_of_a_crop_are_corners_of_its_region():
    crops = torch.tensor([[10.0, 20, 30, 60], [-5, 0, 5, 10]])
    corners = torch.tensor([[0.0, 0], [40, 20], [20, 10]]).expand(2, 3, 2)
    assert to_image_points(corners, crops, SIZE).tolist() == [
        [[10, 20], [30, 60], [20, 40]],
        [[-5, 0], [5, 10], [0, 5]],
    ]
    assert to_image_points(corners[0], crops[0], SIZE).tolist()[1] == [30, 60]


def test_wrong_sizes_and_integers_are_refused():
    crops = torch.zeros(1, 4)
    for size in ((20,), (20, 0), (1, 2, 3), (-4, 4)):
        with pytest.raises(ValueError, match=r"\(height, width\)"):
            to_image_points(torch.zeros(1, 3, 2), crops, size)
    with pytest.raises(TypeError, match="int64; convert"):
        to_image_points(torch.zeros((1, 3, 2), dtype=torch.int64), crops, SIZE)


@pytest.mark.parametrize("crop", [(4,), (3, 4), (2, 5)], ids=str)
def test_crops_that_do_not_fit_the_points_are_refused(crop):
    with pytest.raises(ValueError, match=r"does not fit points \(2, 5, 2\)"):
        to_image_points(torch.zeros(2, 5, 2), torch.zeros(crop), SIZE)
