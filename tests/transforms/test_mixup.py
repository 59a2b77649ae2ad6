"""MixUp: blended pixels by the formula, and the objects of both images where they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lit_loader import LinearSchedule, MixUp, sample_key, sample_rng
from lit_loader.errors import SettingError
from lit_loader.images.lazy_image import DecodedImage
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
    mix_sample,
    rows_of,
    target_of,
)


def two(seed, **settings):
    rng = np.random.default_rng(seed)
    return [drawn_sample(number, rng, **settings) for number in range(2)]


def plain_sample(number, level, size):
    pixels = torch.full((3, *size), level, dtype=torch.uint8)
    return mix_sample(DecodedImage(pixels, is_shared=True), target_of(number, [], size, np.random.default_rng(0)))


@given(seed=SEEDS, masks=st.booleans())
def test_objects_of_both_images_stay_where_they_are_drawn(seed, masks):
    samples = two(seed, masks=masks)
    # Lambda is 0 or 1, so the partner or the image is seen.
    mixed = apply(MixUp(alpha=1e-5), samples, seed)
    with sample_key(seed=seed):
        shows_partner = sample_rng().numpy.beta(1e-5, 1e-5) < 0.5
    size = samples[0].image.size
    assert mixed.image.size == size
    check_fields(mixed.target, size)
    assert mixed.target["labels"].tolist() == [label for s in samples for label in s.target["labels"].tolist()]
    boxes, labels = rows_of(mixed.target)
    num_first = len(samples[0].target["labels"])
    assert np.array_equal(boxes[:num_first], rows_of(samples[0].target)[0])
    pixels = canvas_of(mixed.image).astype(int)
    for row in range(num_first, len(boxes)) if shows_partner else range(num_first):
        is_colour = (pixels == colour(labels[row])).all(axis=2)
        if masks:
            bitmap = mixed.target["masks"][row].numpy()
            assert bitmap[is_colour].mean() > 0.9 if is_colour.sum() > 20 else True
            continue
        low = np.ceil(boxes[row][:2] + 2.5).astype(int)
        high = np.floor(boxes[row][2:] - 2.5).astype(int)
        assert is_colour[low[1] : high[1], low[0] : high[0]].all()
        is_colour[max(0, low[1] - 5) : high[1] + 5, max(0, low[0] - 5) : high[0] + 5] = False
        assert not is_colour.any()


@given(seed=SEEDS, levels=st.tuples(st.integers(0, 255), st.integers(0, 255)))
def test_pixels_are_the_weighted_mean_rounded_to_nearest(seed, levels):
    # The partner is wider, so it fills the width, and 10 of 40 rows.
    samples = [plain_sample(0, levels[0], (40, 40)), plain_sample(1, levels[1], (20, 80))]
    pixels = canvas_of(apply(MixUp(), samples, seed).image)
    with sample_key(seed=seed):
        share = round(sample_rng().numpy.beta(32, 32) * 256) / 256
    blended = np.floor(share * levels[0] + (1 - share) * levels[1] + 0.5)
    is_blended = np.zeros((40, 40), dtype=bool)
    rows = [row for row in range(31) if (pixels[row : row + 10] == blended).all()]
    assert rows
    is_blended[rows[0] : rows[0] + 10] = True
    assert (pixels[~is_blended] == levels[0]).all()


def test_lambda_is_beta_distributed():
    samples = [plain_sample(0, 255, (1, 1)), plain_sample(1, 0, (1, 1))]
    shares = np.array(
        [apply(MixUp(alpha=2.0), samples, seed).image.read()[0, 0, 0].item() / 255 for seed in range(600)]
    )
    # Beta(2, 2) has a mean of 1/2 and a variance of 1/20.
    assert abs(shares.mean() - 0.5) < 5 * (0.05 / 600) ** 0.5
    assert 0.04 < shares.var() < 0.06


@given(seed=SEEDS, masks=st.booleans())
def test_lazily_decoded_jpegs_give_the_bits_of_decoded_ones(seed, masks):
    decoded, exact, fast = (
        apply(MixUp(), two(seed, masks=masks, image=kind), seed) for kind in ("jpeg", "exact", "fast")
    )
    assert np.array_equal(canvas_of(decoded.image), canvas_of(exact.image))
    assert_same_targets(decoded.target, exact.target)
    assert_same_targets(decoded.target, fast.target)


@given(seed=SEEDS, masks=st.booleans())
def test_shared_memory_is_not_written(seed, masks):
    samples = two(seed, image="cached", masks=masks)
    copies = frozen_copies(samples)
    mixed = apply(MixUp(), samples, seed)
    mixed.image.read().fill_(9)
    for value in mixed.target.values():
        if isinstance(value, Tensor):
            value.as_subclass(Tensor).fill_(1)
    assert_unchanged(samples, copies)


def test_tensors_of_a_users_set_are_not_written():
    samples = [(sample.image.read(), sample.target) for sample in two(1)]
    for _, target in samples:
        del target["colour"], target["names"]
    images = [image.clone() for image, _ in samples]
    image, _ = apply(MixUp(), samples)
    assert type(image) is Tensor
    assert not torch.equal(image, images[0])
    assert all(torch.equal(image, copy) for (image, _), copy in zip(samples, images, strict=True))


@pytest.mark.parametrize("sizes", [((1, 1), (1, 1)), ((1, 1), (50, 3)), ((50, 3), (1, 1))])
def test_images_of_one_pixel(sizes):
    rng = np.random.default_rng(0)
    samples = [drawn_sample(number, rng, size=size, sides=(1, 2)) for number, size in enumerate(sizes)]
    mixed = apply(MixUp(), samples)
    assert mixed.image.size == sizes[0]
    check_fields(mixed.target, sizes[0])


def test_alpha_follows_the_epoch():
    mix = MixUp(alpha=LinearSchedule({0: 1e6, 1: 1e-6}))
    samples = [plain_sample(0, 200, (4, 4)), plain_sample(1, 0, (4, 4))]
    assert {int(apply(mix, samples, seed).image.read()[0, 0, 0]) for seed in range(20)} == {100}
    assert {int(apply(mix, samples, seed, epoch=1).image.read()[0, 0, 0]) for seed in range(40)} == {0, 200}
    assert mix.num_partners(0) == 1
    assert repr(mix) == "MixUp(p=1; alpha=linear through 1e+06 at 0, 1e-06 at 1)"


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), "32", True, {"points": {0: 1, 2: -1}}])
def test_a_wrong_alpha_is_refused(alpha):
    with pytest.raises(SettingError, match="alpha"):
        MixUp(alpha=alpha)


def test_a_number_of_samples_that_is_not_two_is_refused():
    with pytest.raises(ValueError, match="blends 2 samples, got 1"):
        apply(MixUp(), two(0)[:1])
