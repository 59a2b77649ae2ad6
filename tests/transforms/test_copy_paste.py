"""CopyPaste: pixels, boxes, masks and points of pasted and of covered objects agree with drawn colours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lit_loader import CopyPaste, LinearSchedule
from lit_loader.errors import SettingError
from lit_loader.images.lazy_image import DecodedImage, LazyImage
from lit_loader.transforms.mix_objects import Cover, hide_covered
from tests.support.mix_marks import (
    FIELDS,
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


def several(seed, *, num_partners=4, **settings):
    rng = np.random.default_rng(seed)
    return [drawn_sample(number, rng, **settings) for number in range(num_partners + 1)]


def bounds(bitmap):
    rows, columns = np.nonzero(bitmap)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


@given(seed=SEEDS, masks=st.booleans(), min_visible=st.sampled_from([0, 0.3, 0.7, 1]))
def test_boxes_and_masks_are_the_visible_pixels_of_each_object(seed, masks, min_visible):
    samples = several(seed, masks=masks, size=(60, 70), sides=(8, 40))
    # At scale 1 no pixel is resampled, so colours are exact.
    mixed = apply(CopyPaste(scale=(1, 1), min_visible=min_visible), samples, seed)
    check_fields(mixed.target, (60, 70))
    pixels = canvas_of(mixed.image)
    boxes, labels = rows_of(mixed.target)
    areas = {label: count for sample in samples for label, count in areas_of(sample, masks).items()}
    own_labels = samples[0].target["labels"].tolist()
    # Objects of an image do not overlap, and each partner pastes one.
    assert len(set(labels)) == len(labels)
    for label, area in areas.items():
        visible = (pixels == colour(label)).all(axis=2)
        if label in labels:
            row = labels.index(label)
            # A neighbour's share refers to the part that its rectangle shows.
            assert visible.sum() >= min_visible * area or label not in own_labels
            assert boxes[row].tolist() == bounds(visible)
            if masks:
                assert np.array_equal(mixed.target["masks"][row].numpy(), visible)
        else:
            assert visible.sum() < max(1, min_visible * area)
    if mixed is not samples[0]:
        check_points(mixed.target, pixels, masks)


def areas_of(sample, masks):
    boxes, labels = rows_of(sample.target)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return dict(zip(labels, sample.target["masks"].sum(dim=(1, 2)).tolist() if masks else areas.tolist(), strict=True))


def check_points(target, pixels, masks):
    """Check that visible points in the middle of objects show their objects, and hidden ones do not."""
    middles = target["keypoints"].as_subclass(Tensor).numpy()[:, 0]
    for (x, y), visibility, label in zip(
        middles, target["visibility"][:, 0].tolist(), target["labels"].tolist(), strict=True
    ):
        is_seen = 0 <= x < pixels.shape[1] and 0 <= y < pixels.shape[0]
        shows_object = is_seen and (pixels[int(y), int(x)] == colour(label)).all()
        # The middle of a neighbour that a rectangle cuts may be outside of it, where other pixels are.
        assert visibility == 2 if shows_object else visibility in (0, 1)
        assert not masks or visibility == (2 if shows_object else 1)


@given(seed=SEEDS, masks=st.booleans(), kind=st.sampled_from(["exact", "fast"]))
def test_lazily_decoded_jpegs_give_the_bits_of_decoded_ones(seed, masks, kind):
    decoded = apply(CopyPaste(), several(seed, masks=masks, image="jpeg"), seed)
    encoded = apply(CopyPaste(), several(seed, masks=masks, image=kind), seed)
    assert np.array_equal(canvas_of(decoded.image), canvas_of(encoded.image))
    assert_same_targets(decoded.target, encoded.target)


@given(seed=SEEDS, masks=st.booleans())
def test_resized_objects_stay_in_the_image(seed, masks):
    rng = np.random.default_rng(seed)
    samples = [drawn_sample(n, rng, masks=masks, sides=(1, 60)) for n in range(6)]
    samples[0] = drawn_sample(0, rng, masks=masks, size=(9, 25), sides=(1, 9))
    mixed = apply(CopyPaste(scale=(0.1, 4), min_visible=0), samples, seed)
    check_fields(mixed.target, (9, 25))
    pixels = canvas_of(mixed.image).astype(int)
    for row, (box, label) in enumerate(zip(*rows_of(mixed.target), strict=True)):
        is_colour = (pixels == colour(label)).all(axis=2)
        if not is_colour.any():
            continue
        x1, y1, x2, y2 = bounds(is_colour)
        # A bilinear resize mixes the colours of pixels at an edge, by up to 4 pixels at a factor of 4.
        assert (box[:2] <= [x1 + 4, y1 + 4]).all()
        assert (box[2:] >= [x2 - 4, y2 - 4]).all()
        if masks:
            assert mixed.target["masks"][row].numpy()[is_colour].mean() > 0.5


@given(seed=SEEDS, masks=st.booleans())
def test_shared_memory_is_not_written(seed, masks):
    samples = several(seed, image="cached", masks=masks)
    copies = frozen_copies(samples)
    mixed = apply(CopyPaste(), samples, seed)
    if mixed is not samples[0]:
        mixed.image.read().fill_(9)
        for value in mixed.target.values():
            if isinstance(value, Tensor):
                value.as_subclass(Tensor).fill_(1)
    assert_unchanged(samples, copies)


class UnreadImage(LazyImage):
    """An image whose pixels must not be read."""

    size = (40, 40)

    def read(self):
        raise AssertionError("the image was read")

    def read_region(self, region, *, zoom):
        raise AssertionError("a region was read")


@pytest.mark.parametrize("masks", [False, True])
def test_images_without_objects_paste_nothing_and_stay_lazy(masks):
    rng = np.random.default_rng(0)
    targets = [target_of(number, [], (40, 40), rng, [] if masks else None) for number in range(3)]
    targets += [target_of(3, [[3, 3, 3, 9]], (40, 40), rng, [np.zeros((40, 40))] if masks else None)]
    crowd = target_of(4, [[3, 3, 9, 9]], (40, 40), rng, [np.ones((40, 40))] if masks else None)
    crowd["iscrowd"][:] = 1
    samples = [mix_sample(UnreadImage(), target) for target in [*targets, crowd]]
    assert apply(CopyPaste(num_objects=4), samples) is samples[0]


def test_only_the_region_of_the_object_is_read():
    regions = []

    class RecordingImage(DecodedImage):
        def read(self):
            raise AssertionError("the whole image was read")

        def read_region(self, region, *, zoom):
            regions.append(region)
            return super().read_region(region, zoom=zoom)

    rng = np.random.default_rng(0)
    target = target_of(1, [[10.5, 20, 30, 29.5]], (40, 40), rng)
    image = RecordingImage(torch.zeros((3, 40, 40), dtype=torch.uint8))
    apply(CopyPaste(), [several(0, size=(40, 40))[0], mix_sample(image, target)])
    assert regions == [(10, 20, 30, 30)]


def test_the_pool_chooses_the_object():
    samples = several(3, size=(60, 60), num_objects=4, sides=(8, 12), num_partners=1, masks=True)
    labels = samples[1].target["labels"].tolist()
    for row, label in enumerate(labels):
        mixed = apply(CopyPaste(), [samples[0], mix_sample(samples[1].image, samples[1].target, row)])
        assert mixed.target["labels"].tolist()[-1] == label


def test_objects_are_drawn_uniformly():
    rng = np.random.default_rng(0)
    target = target_of(1, [[0, 0, 4, 4], [10, 10, 14, 14], [20, 0, 24, 4], [0, 20, 9, 29]], (40, 40), rng)
    target["iscrowd"][3] = 1
    blank = mix_sample(DecodedImage(torch.zeros((3, 40, 40), dtype=torch.uint8)), target_of(0, [], (40, 40), rng))
    partner = mix_sample(DecodedImage(torch.zeros((3, 40, 40), dtype=torch.uint8), is_shared=True), target)
    labels = [apply(CopyPaste(), [blank, partner], seed).target["labels"].item() for seed in range(600)]
    assert set(labels) == {11, 12, 13}
    assert np.bincount(labels)[11:].min() > 140


def test_the_place_that_covers_least_is_taken():
    rng = np.random.default_rng(0)
    target = target_of(0, [[0, 0, 50, 100]], (100, 100), rng)
    partner = target_of(1, [[0, 0, 10, 10]], (100, 100), rng)
    image = DecodedImage(torch.zeros((3, 100, 100), dtype=torch.uint8))
    shares = []
    for seed in range(100):
        boxes, _ = rows_of(
            apply(CopyPaste(scale=(1, 1)), [mix_sample(image, target), mix_sample(image, partner)], seed).target
        )
        shares.append(boxes[-1][0] >= 50)
    # One place alone would be free in 45 of 100 images, and one of 8 is free in all but one.
    assert np.mean(shares) > 0.95


def test_rectangles_bring_the_neighbours_that_they_show():
    rng = np.random.default_rng(0)
    boxes = [[10, 10, 30, 30], [20, 20, 30, 40], [25, 0, 35, 20], [12, 12, 14, 14], [0, 0, 40, 40]]
    target = target_of(1, boxes, (40, 40), rng)
    target["iscrowd"][4] = 1
    blank = mix_sample(DecodedImage(torch.zeros((3, 40, 40), dtype=torch.uint8)), target_of(0, [], (40, 40), rng))
    partner = mix_sample(DecodedImage(torch.zeros((3, 40, 40), dtype=torch.uint8)), target, object_row=0)
    for share, labels in ((0.25, [11, 12, 13, 14, 15]), (0.3, [11, 12, 14, 15]), (0.51, [11, 14, 15])):
        mixed = apply(CopyPaste(scale=(1, 1), min_visible=share), [blank, partner])
        assert mixed.target["labels"].tolist() == labels
        check_fields(mixed.target, (40, 40))
        corner = rows_of(mixed.target)[0][0, :2]
        assert (rows_of(mixed.target)[0][-1] - np.tile(corner, 2)).tolist() == [0, 0, 20, 20]


def test_hidden_crowds_keep_their_row():
    rng = np.random.default_rng(0)
    target = target_of(0, [[2, 2, 6, 6]], (10, 10), rng)
    partner = target_of(1, [[0, 0, 10, 10]], (10, 10), rng)
    image = DecodedImage(torch.zeros((3, 10, 10), dtype=torch.uint8))
    samples = [mix_sample(image, target), mix_sample(image, partner)]
    assert apply(CopyPaste(scale=(1, 1)), samples).target["labels"].tolist() == [11]
    target["iscrowd"][0] = 1
    target = apply(CopyPaste(scale=(1, 1)), samples).target
    assert target["labels"].tolist() == [1, 11]
    assert target["area"].tolist() == [0, 100]


def test_covered_boxes_are_those_of_the_uncovered_rest():
    rng = np.random.default_rng(0)
    for _ in range(300):
        boxes = rng.integers(0, 12, (6, 2, 2))
        boxes = np.concatenate([boxes.min(axis=1), boxes.max(axis=1)], axis=1)
        covers = []
        for first_row in sorted(rng.integers(0, 7, rng.integers(1, 6)).tolist()):
            x, y = rng.integers(0, 10, 2).tolist()
            covers.append(Cover((x, y, *(np.array([x, y]) + rng.integers(1, 9, 2)).tolist()), None, first_row))
        share = float(rng.choice([0, 0.3, 0.9]))
        result = hide_covered(target_of(0, boxes, (12, 12), rng), covers, min_visible=share, fields=FIELDS)
        expected = {}
        for row, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
            free = np.zeros((20, 20), dtype=bool)
            free[y1:y2, x1:x2] = True
            area = free.sum()
            for region, _, first_row in covers:
                if row < first_row:
                    free[region[1] : region[3], region[0] : region[2]] = False
            if not area:
                expected[row + 1] = [x1, y1, x2, y2]
            elif free.sum() and free.sum() >= share * area:
                expected[row + 1] = bounds(free)
        result_boxes, labels = rows_of(result)
        assert dict(zip(labels, result_boxes.tolist(), strict=True)) == expected


def test_points_of_the_pasted_object_beside_its_mask_become_hidden():
    rng = np.random.default_rng(0)
    bitmap = np.zeros((40, 40), dtype=np.uint8)
    bitmap[10:20, 10:15] = bitmap[10:12, 10:20] = 1
    target = target_of(1, [[10, 10, 20, 20]], (40, 40), rng, [bitmap])
    target["keypoints"].as_subclass(Tensor)[0] = torch.tensor([[12.5, 15.5], [18.5, 18.5]])
    target["visibility"][0] = 2
    blank_image = DecodedImage(torch.zeros((3, 40, 40), dtype=torch.uint8))
    mixed = apply(
        CopyPaste(scale=(1, 1)),
        [mix_sample(blank_image, target_of(0, [], (40, 40), rng, [])), mix_sample(blank_image, target)],
    )
    assert mixed.target["visibility"].tolist() == [[2, 1]]


def test_covered_points_become_hidden_and_absent_ones_stay_absent():
    rng = np.random.default_rng(0)
    target = target_of(0, [[0, 0, 40, 40]] * 3, (40, 40), rng)
    target["keypoints"].as_subclass(Tensor)[:] = torch.tensor([[20.0, 20.0], [39.5, 39.5]])
    target["visibility"] = torch.tensor([[0, 0], [1, 1], [2, 2]], dtype=torch.uint8)
    covers = [Cover((10, 10, 30, 30), None, first_row=3)]
    assert hide_covered(target, covers, min_visible=0, fields=FIELDS)["visibility"].tolist() == [[0, 0], [1, 1], [1, 2]]


@pytest.mark.parametrize("box", [[0, 0, 40, 40], [12, 12, 14, 14], [30, 30, 35, 35]])
def test_the_box_of_a_pasted_object_is_that_of_its_mask(box):
    rng = np.random.default_rng(0)
    bitmap = np.zeros((40, 40), dtype=np.uint8)
    # Half of the size has no pixel of the single column at the left.
    bitmap[10:20, 10:20] = 1
    bitmap[:, 8] = 1
    bitmap[20:] = bitmap[:10] = 0
    target = target_of(1, [box], (40, 40), rng, [bitmap])
    image = DecodedImage(torch.zeros((3, 40, 40), dtype=torch.uint8), is_shared=True)
    samples = [mix_sample(image, target_of(0, [], (40, 40), rng, [])), mix_sample(image, target)]
    for scale, width in ((1, 12), (0.5, 5)):
        mixed = apply(CopyPaste(scale=(scale, scale)), samples)
        assert rows_of(mixed.target)[0].tolist() == [bounds(mixed.target["masks"][0].numpy())]
        assert mixed.target["masks"].amax(dim=1).sum() == width - (scale == 1)


@pytest.mark.parametrize("box", [[0, 0, 80, 10], [0, 0, 10, 80]])
def test_objects_that_do_not_fit_shrink_with_their_aspect_ratio(box):
    rng = np.random.default_rng(0)
    image = DecodedImage(torch.zeros((3, 80, 80), dtype=torch.uint8), is_shared=True)
    blank = DecodedImage(torch.zeros((3, 40, 40), dtype=torch.uint8), is_shared=True)
    samples = [
        mix_sample(blank, target_of(0, [], (40, 40), rng)),
        mix_sample(image, target_of(1, [box], (80, 80), rng)),
    ]
    boxes, _ = rows_of(apply(CopyPaste(scale=(1, 1)), samples).target)
    assert sorted((boxes[0, 2:] - boxes[0, :2]).tolist()) == [5, 40]


def test_objects_outside_of_their_image_are_not_pasted():
    rng = np.random.default_rng(0)
    image = DecodedImage(torch.zeros((3, 40, 40), dtype=torch.uint8), is_shared=True)
    # One quarter and three quarters of the boxes are inside.
    target = target_of(1, [[-30, 0, 10, 10], [-10, 20, 30, 30]], (40, 40), rng)
    samples = [mix_sample(image, target_of(0, [], (40, 40), rng)), mix_sample(image, target)]
    labels = {
        share: {
            label
            for seed in range(20)
            for label in apply(CopyPaste(scale=(1, 1), min_visible=share), samples, seed).target["labels"].tolist()
        }
        for share in (0.25, 0.3, 0.76)
    }
    assert labels == {0.25: {11, 12}, 0.3: {12}, 0.76: set()}


def test_masks_without_a_pixel_after_shrinking_paste_nothing():
    rng = np.random.default_rng(0)
    masks = np.zeros((1, 40, 40), dtype=np.uint8)
    masks[0, [0, 39], [0, 39]] = 1
    image = DecodedImage(torch.zeros((3, 40, 40), dtype=torch.uint8), is_shared=True)
    target = target_of(1, [[0, 0, 40, 40]], (40, 40), rng, masks)
    samples = [mix_sample(image, target_of(0, [], (40, 40), rng, [])), mix_sample(image, target)]
    assert apply(CopyPaste(scale=(0.1, 0.1)), samples) is samples[0]


def test_partners_by_epoch():
    mix = CopyPaste(num_objects=LinearSchedule({0: 3, 10: 0}))
    assert [mix.num_partners(epoch) for epoch in (0, 5, 10, 20)] == [3, 2, 0, 0]
    assert CopyPaste(num_objects=15).num_partners(3) == 15
    text = repr(CopyPaste(num_objects={"points": {0: 3, 10: 0}}, class_weights="balanced"))
    assert text == "CopyPaste(p=1; num_objects=linear through 3 at 0, 0 at 10; class_weights=balanced)"


@pytest.mark.parametrize(
    "settings",
    [
        {"num_objects": 16},
        {"num_objects": -1},
        {"num_objects": 2.5},
        {"p": True},
        {"num_objects": {"choices": [1, 2]}},
        {"num_objects": {"points": {0: 1, 5: 16}}},
        {"class_weights": "even"},
        {"class_weights": {"cat": -1}},
        {"class_weights": {"cat": 0}},
        {"class_weights": {"cat": {"points": {0: 1}}}},
        {"class_weights": [1, 2]},
        {"scale": (0, 1)},
        {"min_visible": -0.1},
    ],
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        CopyPaste(**settings)
