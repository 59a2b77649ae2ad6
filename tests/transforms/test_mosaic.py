"""Mosaics: pixels, boxes, masks and points of four drawn images agree, for every way of reading them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision import tv_tensors

from lit_loader import CopyPaste, EpochRange, LinearSchedule, MixSample, MixUp, Mosaic, sample_key, sample_rng
from lit_loader.errors import SettingError
from lit_loader.images.lazy_image import DecodedImage
from lit_loader.transforms.mosaic import _shown_span
from tests.support.mix_marks import (
    SEEDS,
    apply,
    assert_same_targets,
    assert_unchanged,
    canvas_of,
    check_fields,
    colour,
    drawn_sample,
    frozen_copies,
    lazy,
    mix_sample,
    rows_of,
    target_of,
)
from tests.support.photo_like import photo_like


def four(seed, **settings):
    rng = np.random.default_rng(seed)
    return [drawn_sample(number, rng, **settings) for number in range(4)]


def check_colours(image, target, all_labels, *, margin, tolerance=0):
    """Check that boxes hold the colours of their objects, and that no object without a box is visible."""
    pixels = canvas_of(image).astype(int)
    boxes, labels = rows_of(target)
    for label in set(all_labels) - set(labels):
        assert (np.abs(pixels - colour(label)) > tolerance).any(axis=2).all()
    for box, label in zip(boxes, labels, strict=True):
        x1, y1 = np.ceil(box[:2] + margin).astype(int)
        x2, y2 = np.floor(box[2:] - margin).astype(int)
        inner = pixels[max(0, y1) : max(0, y2), max(0, x1) : max(0, x2)]
        assert (np.abs(inner - colour(label)) <= tolerance).all()
        outer_low = np.maximum(0, np.floor(box[:2] - margin)).astype(int)
        outer_high = np.ceil(box[2:] + margin).astype(int)
        is_colour = (np.abs(pixels - colour(label)) <= tolerance).all(axis=2)
        is_colour[outer_low[1] : outer_high[1], outer_low[0] : outer_high[0]] = False
        assert not is_colour.any()


@given(seed=SEEDS, masks=st.booleans(), size=st.sampled_from([None, 64, (50, 90), (31, 17)]))
def test_boxes_and_masks_are_where_the_colours_are(seed, masks, size):
    samples = four(seed, masks=masks)
    mixed = apply(Mosaic(size=size, fill=3, min_visible=0), samples, seed)
    assert isinstance(mixed, MixSample)
    expected_size = samples[0].image.size if size is None else (size, size) if isinstance(size, int) else size
    assert mixed.image.size == expected_size
    check_fields(mixed.target, expected_size)
    if not masks:
        # A bilinear resize by 4 or less mixes colours at most 2 pixels beside an edge.
        all_labels = [label for sample in samples for label in sample.target["labels"].tolist()]
        check_colours(mixed.image, mixed.target, all_labels, margin=2.5)
    else:
        pixels = canvas_of(mixed.image).astype(int)
        for bitmap, box, label in zip(mixed.target["masks"].numpy(), *rows_of(mixed.target), strict=True):
            is_colour = (pixels == colour(label)).all(axis=2)
            assert (bitmap[is_colour] == 1).mean() > 0.9 if is_colour.sum() > 20 else True
            rows, columns = np.nonzero(bitmap)
            if len(rows):
                assert (box[:2] <= [columns.min() + 1, rows.min() + 1]).all()
                assert (box[2:] >= [columns.max(), rows.max()]).all()


@given(seed=SEEDS)
def test_visible_points_show_their_object(seed):
    samples = four(seed, sides=(16, 30), size=(80, 80))
    mixed = apply(Mosaic(size=(120, 120), scale=(0.7, 1.5), fill=0), samples, seed)
    pixels = canvas_of(mixed.image)
    points = mixed.target["keypoints"].as_subclass(Tensor).numpy()[:, 0]
    labels = mixed.target["labels"].tolist()
    for (x, y), visibility, label, box in zip(
        points, mixed.target["visibility"][:, 0].tolist(), labels, rows_of(mixed.target)[0], strict=True
    ):
        is_inside = box[0] - 1 <= x <= box[2] + 1 and box[1] - 1 <= y <= box[3] + 1
        assert visibility == 2 * int(is_inside) or min(abs(box - [x, y, x, y])) < 1.01
        if visibility and min(x - box[0], y - box[1], box[2] - x, box[3] - y) > 3:
            assert (pixels[int(y), int(x)] == colour(label)).all()


@given(seed=SEEDS, masks=st.booleans())
def test_lazily_decoded_jpegs_give_the_bits_of_decoded_ones(seed, masks):
    decoded, exact, fast = (four(seed, masks=masks, image=kind) for kind in ("jpeg", "exact", "fast"))
    results = [apply(Mosaic(size=48), samples, seed) for samples in (decoded, exact, fast)]
    assert np.array_equal(canvas_of(results[0].image), canvas_of(results[1].image))
    for result in results[1:]:
        assert_same_targets(results[0].target, result.target)
    difference = canvas_of(results[0].image).astype(int) - canvas_of(results[2].image)
    # Flat colours decoded at a reduced size differ at edges only.
    assert np.mean(np.abs(difference)) < 8


def test_exact_images_are_never_decoded_at_a_reduced_size():
    rng = np.random.default_rng(0)
    pixels = np.asarray(photo_like(240, 320))
    target = target_of(0, [], (240, 320), rng)
    decoded, exact, fast = (
        apply(Mosaic(size=64, scale=(0.6, 0.9)), [mix_sample(lazy(pixels, kind), target)] * 4)
        for kind in ("jpeg", "exact", "fast")
    )
    assert torch.equal(decoded.image.read(), exact.image.read())
    assert not torch.equal(decoded.image.read(), fast.image.read())


@given(seed=SEEDS)
def test_scale_and_center_place_the_images_as_announced(seed):
    images = [drawn_sample(n, np.random.default_rng(seed + n), num_objects=0) for n in range(4)]
    whites = [
        mix_sample(DecodedImage(torch.full((3, 40, 60), 50 * (n + 1), dtype=torch.uint8)), images[n].target)
        for n in range(4)
    ]
    pixels = canvas_of(apply(Mosaic(size=(80, 120), center=(0.5, 0.5), scale=(0.25, 0.25), fill=7), whites, seed).image)
    expected = np.full((80, 120, 3), 7, dtype=np.uint8)
    for number, (y, x) in enumerate([(20, 30), (20, 60), (40, 30), (40, 60)]):
        expected[y : y + 20, x : x + 30] = 50 * (number + 1)
    assert np.array_equal(pixels, expected)
    pixels = canvas_of(apply(Mosaic(size=(80, 120), center=(0.3, 0.3), scale=(1, 1.5)), whites, seed).image)
    assert np.array_equal(np.unique(pixels[:24, :36]), [50])
    assert np.array_equal(np.unique(pixels[24:, 36:]), [200])


def test_objects_below_the_smallest_share_leave_every_field():
    # The first image shows its left upper quarter or another crop of the same size.
    target_boxes = [[0, 0, 100, 100], [10, 10, 10, 30]]

    def sample(number):
        target = target_of(number, target_boxes, (100, 100), np.random.default_rng(number))
        return mix_sample(DecodedImage(torch.zeros((3, 100, 100), dtype=torch.uint8)), target)

    samples = [sample(number) for number in range(4)]
    # A quarter of every object is shown.
    mix = {share: Mosaic(center=(0.5, 0.5), scale=(1, 1), min_visible=share) for share in (0.25, 0.26)}
    assert set(range(1, 41, 10)) <= set(apply(mix[0.25], samples).target["labels"].tolist())
    assert not set(range(1, 41, 10)) & set(apply(mix[0.26], samples).target["labels"].tolist())
    for number in range(4):
        samples[number].target["iscrowd"][0] = 1
    result = apply(mix[0.26], samples)
    check_fields(result.target, (100, 100))
    assert set(range(1, 41, 10)) <= set(result.target["labels"].tolist())


def test_the_share_of_an_object_is_that_of_its_mask():
    rng = np.random.default_rng(0)
    bitmap = np.zeros((100, 100), dtype=np.uint8)
    bitmap[:10, :10] = 1
    target = target_of(0, [[0, 0, 100, 100]], (100, 100), rng, [bitmap])
    empty = [target_of(n, [], (100, 100), rng, []) for n in range(1, 4)]
    samples = [mix_sample(DecodedImage(torch.zeros((3, 100, 100), dtype=torch.uint8)), t) for t in (target, *empty)]
    results = [apply(Mosaic(center=(0.5, 0.5), scale=(1, 1), min_visible=1), samples, seed) for seed in range(200)]
    counts = {len(result.target["labels"]) for result in results}
    assert counts == {0, 1}
    for result in results:
        for box, part in zip(rows_of(result.target)[0], result.target["masks"].numpy(), strict=True):
            assert part.sum() == 100
            assert (box[2:] - box[:2]).tolist() == [10, 10]


@given(seed=SEEDS, kind=st.sampled_from(["decoded", "cached"]), masks=st.booleans())
def test_shared_memory_is_not_written(seed, kind, masks):
    samples = four(seed, image=kind, masks=masks)
    copies = frozen_copies(samples)
    mixed = apply(Mosaic(), samples, seed)
    mixed.image.read().fill_(9)
    for value in mixed.target.values():
        if isinstance(value, Tensor):
            value.as_subclass(Tensor).fill_(1)
    assert_unchanged(samples, copies)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 2)])
def test_images_and_canvases_of_one_pixel(size):
    rng = np.random.default_rng(0)
    for samples in (
        four(1, size=(1, 1), sides=(1, 2)),
        four(2),
        [drawn_sample(n, rng, size=(1, 60)) for n in range(4)],
    ):
        mixed = apply(Mosaic(size=size), samples)
        assert mixed.image.size == size
        check_fields(mixed.target, size)


def test_fields_of_the_image_are_those_of_the_first_and_unlabelled_is_the_union():
    samples = four(3)
    samples[1].target["unlabelled"] = torch.tensor([4, 2])
    samples[3].target["unlabelled"] = torch.tensor([2, 9])
    target = apply(Mosaic(), samples).target
    assert target["image_id"] == 0
    assert target["unlabelled"].tolist() == [2, 4, 9]


def test_a_field_of_one_image_is_refused():
    for numbers in ((2, 0), (3,)):
        samples = four(3)
        for number in numbers:
            samples[number].target["occluded"] = torch.zeros(len(samples[number].target["labels"]))
        with pytest.raises(ValueError, match="'occluded' is missing in an image"):
            apply(Mosaic(), samples)
    samples = four(3)
    samples[2].target["occluded"] = torch.zeros(17)
    with pytest.raises(ValueError, match=r"'occluded' has 17 rows for"):
        apply(Mosaic(), samples)


def test_undeclared_vectors_are_refused_although_their_length_fits():
    samples = four(3, num_objects=2)
    for sample in samples:
        sample.target["camera"] = torch.zeros(len(sample.target["labels"]))
    with pytest.raises(ValueError, match=r"'camera' has a first dimension, but is not declared; .*per_image"):
        apply(Mosaic(), samples)


def test_objects_whose_mask_vanishes_when_it_shrinks_are_removed():
    rng = np.random.default_rng(0)
    masks = np.zeros((2, 90, 90), dtype=np.uint8)
    masks[0, 40, 40] = 1
    boxes = [[40, 40, 41, 41], [50, 50, 51, 51]]
    samples = [
        mix_sample(DecodedImage(torch.zeros((3, 90, 90), dtype=torch.uint8)), target_of(n, boxes, (90, 90), rng, masks))
        for n in range(4)
    ]
    mixed = apply(Mosaic(scale=(0.2, 0.2), center=(0.5, 0.5)), samples)
    # The second object of an image has no mask in the annotations.
    assert all(label % 10 == 2 for label in mixed.target["labels"].tolist())
    assert len(mixed.target["labels"]) == 4
    check_fields(mixed.target, (90, 90))


def test_masks_stay_bool():
    samples = four(3, masks=True)
    for sample in samples:
        masks = sample.target["masks"]
        sample.target["masks"] = tv_tensors.Mask(masks.as_subclass(Tensor).bool())
    assert apply(Mosaic(), samples).target["masks"].dtype is torch.bool
    assert apply(CopyPaste(), samples).target["masks"].dtype is torch.bool
    assert apply(MixUp(), samples[:2]).target["masks"].dtype is torch.bool


@pytest.mark.parametrize("factor", [0.1, 0.13, 0.3, 0.45, 0.5, 0.7, 2.0])
def test_ends_of_a_crop_are_whole_pixels_of_a_shrunk_image(factor):
    shrink = max(shrink for shrink in (1, 2, 4, 8) if shrink == 1 or factor * shrink <= 1)
    for side, draw in itertools.product((97, 400, 1003), (0.0, 0.37, 0.999)):
        start, stop, length = _shown_span(side, 23, factor, draw)
        if side * factor <= 23:
            assert (start, stop) == (0, side)
            continue
        assert start % shrink == 0
        assert stop % shrink == 0 or stop == side
        assert length == 23
        assert stop - start >= min(side, round(23 / factor))


def test_samples_of_a_users_set_stay_of_their_kind():
    samples = [(sample.image.read(), sample.target) for sample in four(5)]
    for _, target in samples:
        del target["colour"], target["names"]
    image, target = apply(Mosaic(), samples)
    assert type(image) is Tensor
    assert image.dtype == torch.uint8
    image, _ = apply(Mosaic(), [(tv_tensors.Image(canvas), target) for canvas, target in samples])
    assert type(image) is tv_tensors.Image
    assert target["boxes"].canvas_size == tuple(image.shape[-2:])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("no sample", "samples .image, target., got str"),
        ((torch.zeros(3, 4, 4), {}), r"uint8 tensors .* got torch.float32 \(3, 4, 4\)"),
        ((torch.zeros(1, 4, 4, dtype=torch.uint8), {}), r"got torch.uint8 \(1, 4, 4\)"),
        ((np.zeros((4, 4, 3), np.uint8), {}), "got ndarray"),
        ((torch.zeros(3, 4, 4, dtype=torch.uint8), {"boxes": torch.zeros(1, 4)}), "XYXY.* got boxes of type Tensor"),
        ((torch.zeros(3, 4, 4, dtype=torch.uint8), None), "got NoneType"),
    ],
)
def test_other_types_are_refused(wrong, message):
    with pytest.raises(TypeError, match=message):
        apply(Mosaic(), [wrong] * 4)


def test_a_number_of_samples_that_is_not_four_is_refused():
    with pytest.raises(ValueError, match=r"made of 4 samples, got 3"):
        apply(Mosaic(), four(0)[:3])


def test_settings_follow_the_epoch():
    mix = Mosaic(
        p=EpochRange([0, 5]),
        size={"points": {0: 32, 4: 64}, "step": 32},
        scale=[{"points": {0: 0.1, 4: 1}}, 1.5],
        min_visible=LinearSchedule({0: 0, 4: 1}),
        fill={"points": {0: 0, 4: 200}},
        center={"epochs": [0, 2], "value": [0.5, 0.5], "otherwise": [0.25, 0.75]},
    )
    assert [mix.chance(epoch) for epoch in (0, 4, 5)] == [1, 1, 0]
    assert [mix.num_partners(epoch) for epoch in (0, 7)] == [3, 3]
    assert [apply(mix, four(1), epoch=epoch).image.size for epoch in (0, 4, 9)] == [(32, 32), (64, 64), (64, 64)]
    assert "size=linear through 32 at 0, 64 at 4, in steps of 32" in repr(mix)
    assert repr(Mosaic()) == "Mosaic(p=1)"
    assert repr(Mosaic(scale=[0.5, 1.5], size=[3, 4])) == "Mosaic(p=1; size=[3, 4])"


def test_one_size_is_drawn_for_a_batch():
    mix = Mosaic(size={"choices": [32, [48, 64]]})
    sizes = set()
    for batch in range(20):
        with sample_key(batch=batch, position=batch * 7):
            sizes.add(mix.apply(four(1), sample_rng()).image.size)
    assert sizes == {(32, 32), (48, 64)}


@pytest.mark.parametrize(
    "settings",
    [
        {"p": 1.5},
        {"size": 0},
        {"size": [3]},
        {"size": [3, 4, 5]},
        {"size": "640"},
        {"center": [0.6, 0.4]},
        {"center": [0, 1.1]},
        {"center": 0.5},
        {"scale": [0, 1]},
        {"scale": [1, float("inf")]},
        {"scale": [2, 1]},
        {"scale": [{"points": {0: 0.5, 9: -1}}, 1]},
        {"scale": [{"choices": [0.5, 1]}, 1]},
        {"min_visible": 1.2},
        {"min_visible": True},
        {"fill": 256},
        {"fill": {"points": {0: 0, 3: 300}}},
    ],
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        Mosaic(**settings)
