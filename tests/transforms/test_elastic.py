"""The elastic transform has torchvision's pixels, and moves points and boxes with them."""

from __future__ import annotations

import torch
from torchvision.transforms import v2

from lit_loader.transforms import detection_transforms
from lit_loader.transforms.elastic import ElasticTransform
from tests.support.drawn_samples import check_boxes, draw, shares
from tests.support.seeded import seeded


def test_without_displacement_points_and_boxes_stay():
    image, target = draw()
    new_image, result = ElasticTransform(0.0)(image, target)
    assert torch.equal(new_image, image)
    for name in ("boxes", "keypoints"):
        torch.testing.assert_close(result[name], target[name], atol=1e-3, rtol=0)
        assert type(result[name]) is type(target[name])
    # torchvision drops the fraction of each coordinate.
    _, rounded = v2.ElasticTransform(0.0)(image, target)
    assert (rounded["keypoints"] - target["keypoints"]).abs().max() > 0.4


def test_pixels_and_draws_are_torchvisions():
    image, target = draw()
    transform = v2.ElasticTransform([70.0, 30.0], [6.0, 5.0], fill=9, interpolation=v2.InterpolationMode.NEAREST)
    expected, _ = seeded(1, transform, image, target)
    result, _ = seeded(1, ElasticTransform.like(transform), image, target)
    assert torch.equal(result, expected)
    assert not torch.equal(result, image)


def distances(transform):
    """Return how far the points are from the centroids of their marks, over several draws."""
    offsets = []
    for seed in range(20):
        image, target = seeded(seed, transform, *draw())
        ys, xs = (torch.arange(side) + 0.5 for side in image.shape[-2:])
        for share, point in zip(shares(image)[0].flatten(0, 1), target["keypoints"].reshape(-1, 2), strict=True):
            centre = torch.stack([(share * xs).sum(), (share * ys[:, None]).sum()]) / share.sum()
            offsets.append((centre - point.as_subclass(torch.Tensor)).abs().max())
    return torch.stack(offsets)


def test_points_land_on_their_marks_more_closely_than_torchvisions():
    offsets = distances(ElasticTransform(100.0, 8.0))
    assert offsets.max() < 0.5
    assert distances(v2.ElasticTransform(100.0, 8.0)).mean() > 3 * offsets.mean()


def test_a_preset_uses_it_instead_of_torchvisions():
    preset = detection_transforms(False, extra_after=[v2.ElasticTransform(100.0, 8.0)])
    assert distances(preset).max() < 0.5


def test_boxes_enclose_their_pixels():
    for seed in range(20):
        image, target = seeded(seed, ElasticTransform(100.0, 8.0), *draw())
        check_boxes(image, target, tolerance=1.6)


def test_a_target_without_objects_stays_empty():
    _, target = ElasticTransform()(*draw(objects=()))
    assert target["boxes"].shape == (0, 4)
    assert target["keypoints"].shape == (0, 3, 2)
