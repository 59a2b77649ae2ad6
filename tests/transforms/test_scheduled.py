"""Guarantee: a scheduled transform is in each epoch the transform that is constructed with the values of the epoch."""

from __future__ import annotations

import pickle
from functools import partial

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import lit_loader
from lit_loader import BatchChoice, EpochRange, FunctionSchedule, LinearSchedule, ScheduledTransform, sample_key
from lit_loader.errors import SettingError
from lit_loader.images import DecodedImage
from lit_loader.transforms import (
    DecodeAwareCompose,
    RandomHorizontalFlip,
    classification_transforms,
    describe,
    detection_transforms,
    landmark_transforms,
)
from lit_loader.transforms.compose import needs_target
from lit_loader.transforms.preset_extras import may_move_pixels
from tests.support.photo_like import photo_like
from tests.support.read_both_ways import HEIGHT, WIDTH, target
from tests.support.toys import plain

PAIRS = ((0, 1),)
LINEAR = LinearSchedule({0: 0.0, 4: 0.8})
FALLING = {"points": {0: 1.0, 3: 0.0}}
SWITCH = {"epochs": [1, 3], "value": 10.0}
SIZES = {"points": {0: 32, 4: 96}, "step": 16}


@pytest.fixture(scope="module")
def image():
    return tv_tensors.Image(functional.pil_to_tensor(photo_like(HEIGHT, WIDTH)))


def sample_of(transform, image, num_objects, epoch, batch=0):
    """Return the sample of a transform under the key of an epoch."""
    with sample_key(epoch=epoch, batch=batch, position=5):
        return plain(transform(image.clone(), target(num_objects)))


def is_even(epoch):
    return float(epoch % 2 == 0)


# A preset, its scheduled keywords, and the values of these in an epoch.
PRESETS = {
    "detection": (
        partial(detection_transforms, True, flip_pairs=PAIRS),
        {
            "hflip": FALLING,
            "photometric": LINEAR,
            "rotation": SWITCH,
            "size": SIZES,
            "vflip": FunctionSchedule(is_even),
        },
        lambda epoch: {
            "hflip": max(0, 1 - epoch / 3),
            "photometric": min(epoch, 4) / 5,
            "rotation": 10.0 if 1 <= epoch < 3 else 0.0,
            "size": [32, 48, 64, 80, 96, 96][epoch],
            "vflip": is_even(epoch),
        },
        3,
    ),
    "detection of shorter sides": (
        partial(detection_transforms, True, flip_pairs=PAIRS),
        {"shorter_sides": [48, {"points": {0: 50, 5: 100}}], "zoom_out": FALLING, "fill": 114},
        lambda epoch: {
            "shorter_sides": [48, 50 + 10 * epoch],
            "zoom_out": max(0, 1 - epoch / 3),
            "fill": 114 if epoch < 3 else 0,
        },
        3,
    ),
    "letterbox": (
        partial(detection_transforms, True, flip_pairs=PAIRS, letterbox=True),
        {"size": [SIZES, SIZES], "fill": {"epochs": [2, None], "value": 9}},
        lambda epoch: {"size": [[32, 48, 64, 80, 96, 96][epoch]] * 2, "fill": 9 if epoch >= 2 else 0},
        3,
    ),
    "classification": (
        partial(classification_transforms, True, size=40, flip_pairs=PAIRS),
        {"area": [{"points": {0: 0.5, 5: 0.1}}, 1.0], "hflip": FALLING},
        lambda epoch: {"area": [0.5 + epoch / 5 * -0.4, 1.0], "hflip": max(0, 1 - epoch / 3)},
        1,
    ),
    "classification of views": (
        partial(classification_transforms, True, size=40, resize="crop", flip_pairs=PAIRS),
        {"rotation": {"points": {0: 30, 3: 0}}, "size": SIZES},
        lambda epoch: {"rotation": max(0, 30 - 10 * epoch), "size": [32, 48, 64, 80, 96, 96][epoch]},
        1,
    ),
    "landmarks": (
        partial(landmark_transforms, True, flip_pairs=PAIRS),
        {"size": SIZES, "scale": [0.8, LinearSchedule({0: 1.0, 2: 1.4})], "shift": FALLING},
        lambda epoch: {
            "size": [32, 48, 64, 80, 96, 96][epoch],
            "scale": [0.8, 1 + min(epoch, 2) * 0.2],
            "shift": max(0, 1 - epoch / 3),
        },
        1,
    ),
}


@pytest.mark.parametrize("convert", [lambda value: value, OmegaConf.create], ids=["python", "omegaconf"])
@pytest.mark.parametrize("name", PRESETS)
def test_preset_by_epoch_equals_preset_by_hand(image, name, convert):
    preset, schedules, by_hand, num_objects = PRESETS[name]
    is_plain = not any(isinstance(value, lit_loader.Schedule) for value in schedules.values())
    if is_plain and "scale" not in schedules:
        schedules = convert(schedules)
    scheduled = preset(**schedules)
    assert isinstance(scheduled, ScheduledTransform)
    for epoch in (0, 3, 1, 2, 5):
        assert sample_of(scheduled, image, num_objects, epoch) == sample_of(
            preset(**by_hand(epoch)), image, num_objects, epoch
        )


def test_extra_transforms_by_epoch_equal_those_by_hand(image):
    blur = ScheduledTransform(partial(v2.GaussianBlur, 5), sigma={"points": {0: 0.5, 4: 2.5}}, epochs=[1, 4])
    flip = ScheduledTransform(v2.RandomHorizontalFlip, p=FALLING)
    colours = ScheduledTransform(v2.ColorJitter(0.4), epochs=[0, 2])
    settings = {"flip_pairs": PAIRS, "size": 48}
    scheduled = detection_transforms(True, extra_before=[flip], extra_after=(blur, colours), **settings)
    for epoch in range(5):
        extra_after = [v2.GaussianBlur(5, 0.5 + epoch / 2)] if 1 <= epoch < 4 else []
        extra_after += [v2.ColorJitter(0.4)] if epoch < 2 else []
        extra_before = [v2.RandomHorizontalFlip(max(0, 1 - epoch / 3))]
        by_hand = detection_transforms(True, extra_before=extra_before, extra_after=extra_after, **settings)
        assert sample_of(scheduled, image, 3, epoch) == sample_of(by_hand, image, 3, epoch)
        with sample_key(epoch=epoch):
            assert scheduled.current().before_mixing == 2
            assert describe(scheduled.current()) == describe(by_hand)


def test_batch_sizes_are_drawn_for_each_batch(image):
    scheduled = detection_transforms(True, size={"choices": [[32, 32], [48, 64]]}, flip_pairs=PAIRS)
    shapes = set()
    for batch in range(8):
        with sample_key(batch=batch):
            shape = tuple(scheduled(image, target(3))[0].shape[-2:])
            assert shape == BatchChoice([[32, 32], [48, 64]]).current()
        shapes.add(shape)
    assert shapes == {(32, 32), (48, 64)}


def test_switched_off_transform_returns_its_inputs(image):
    transform = ScheduledTransform(v2.RandomInvert(p=1), epochs=[1, 2])
    sample = (image, target(1))
    for epoch, changes in enumerate([False, True, False]):
        with sample_key(epoch=epoch):
            assert (transform.current() is None) == (not changes)
            assert torch.equal(transform(image), image) == (not changes)
            assert changes or transform(*sample)[1] is sample[1]
            assert torch.equal(v2.Compose([transform])(*sample)[0], image) == (not changes)


def test_composition_reads_lazy_images_by_the_scheduled_resize(image):
    resize = ScheduledTransform(lambda size: v2.Compose([v2.Resize(size), RandomHorizontalFlip(p=0)]), size=SIZES)
    late = ScheduledTransform(v2.RandomInvert(p=1), epochs=[1, None])
    compose = DecodeAwareCompose([resize, late], before_mixing=1)
    for epoch in (0, 1):
        by_hand = DecodeAwareCompose([v2.Resize(32 + 16 * epoch), *([v2.RandomInvert(p=1)] if epoch else [])])
        with sample_key(epoch=epoch):
            expected = by_hand(image, {})[0]
            assert torch.equal(compose(image, {})[0], expected)
            first_image, _ = compose.read_first(DecodedImage(image.as_subclass(torch.Tensor)), {})
            assert isinstance(first_image, lit_loader.images.LazyImage)
            assert torch.equal(compose.read_rest(first_image, {})[0], expected)


def test_transforms_are_constructed_once_for_each_combination_of_values():
    calls = []

    def blur(sigma):
        calls.append(sigma)
        return v2.GaussianBlur(3, sigma)

    transform = ScheduledTransform(blur, sigma={"epochs": [2, 4], "value": 1.0, "otherwise": 2.0})
    transforms = []
    for epoch in (0, 1, 2, 3, 4):
        with sample_key(epoch=epoch):
            transforms.append(transform.current())
    assert sorted(calls) == [1.0, 2.0]
    assert transforms[0] is transforms[1] is transforms[4] is not transforms[2] is transforms[3]


def test_pickled_transform_constructs_the_same_transforms(image):
    blur = ScheduledTransform(v2.GaussianBlur, kernel_size=3, sigma=LinearSchedule({0: 1, 4: 2}), epochs=[1, None])
    scheduled = detection_transforms(True, size=SIZES, flip_pairs=PAIRS, extra_after=[blur])
    copied = pickle.loads(pickle.dumps(scheduled))
    for epoch in (0, 3):
        assert sample_of(copied, image, 3, epoch) == sample_of(scheduled, image, 3, epoch)


def test_evaluation_has_final_values_in_all_epochs(image):
    settings = {"hflip": FunctionSchedule(is_even), "photometric": LINEAR, "flip_pairs": PAIRS}
    for size in (SIZES, {"choices": [64, 96, 32]}, {"epochs": [0, 2], "value": 32, "otherwise": 96}):
        transform = detection_transforms(False, size=size, **settings)
        assert not isinstance(transform, ScheduledTransform)
        assert describe(transform) == describe(detection_transforms(False, size=96))
    with pytest.raises(SettingError, match="has no last value, which evaluation uses"):
        detection_transforms(False, size=FunctionSchedule(lambda epoch: 32 + epoch))


def test_extra_transforms_of_evaluation_do_not_depend_on_the_epoch():
    extras = [
        ScheduledTransform(v2.RandomInvert(p=1), epochs=[1, 2]),
        ScheduledTransform(v2.GaussianBlur, kernel_size=3, sigma={"points": {0: 0.5, 4: 1.0}}),
        ScheduledTransform(v2.RandomGrayscale(p=1), epochs=[3, None]),
    ]
    transform = detection_transforms(False, size=96, extra_after=extras)
    last_extras = [v2.GaussianBlur(kernel_size=3, sigma=1.0), v2.RandomGrayscale(p=1)]
    assert not isinstance(transform, ScheduledTransform)
    assert describe(transform) == describe(detection_transforms(False, size=96, extra_after=last_extras))


def test_scheduled_view_is_one_view_in_every_epoch(image):
    """A schedule that ends at 0 must not turn views of the whole image into random parts of it."""
    preset = partial(classification_transforms, True, size=32, flip_pairs=PAIRS)
    scheduled = preset(rotation={"points": {0: 30, 2: 0}})
    for epoch in (0, 2, 9):
        by_hand = preset(rotation=max(0, 30 - 15 * epoch), resize="crop")
        assert sample_of(scheduled, image, 0, epoch) == sample_of(by_hand, image, 0, epoch)


def test_fill_may_be_constant_while_padding_ends():
    assert isinstance(detection_transforms(True, zoom_out=FALLING, fill=114), ScheduledTransform)
    with pytest.raises(ValueError, match="has no effect"):
        detection_transforms(True, hflip=FALLING, fill=114)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    ("preset", "keywords", "message"),
    [
        (detection_transforms, {"hflip": {"points": {0: 0.5, 10: 1.5}}}, "is not a probability"),
        (detection_transforms, {"rotation": LinearSchedule({0: 0, 9: 181})}, "from 0 to 180"),
        (detection_transforms, {"size": {"points": {0: 320, 7: 640}}}, "give a schedule a step"),
        (detection_transforms, {"size": {"choices": [320, 0]}}, "at least 1"),
        (detection_transforms, {"size": {"choices": [320, [320, 320]]}, "letterbox": True}, "needs size="),
        (detection_transforms, {"shorter_sides": [{"points": {0: 320, 3: 0}}]}, "at least 1"),
        (detection_transforms, {"hflip": {"pionts": {0: 1}}}, "hflip=.* describes no schedule"),
        (detection_transforms, {"shorter_sides": [{"choice": [1, 2]}]}, "describes no schedule"),
        (detection_transforms, {"hflip": {"points": {0: 1}, "stpe": 2}}, "hflip.stpe=2 is not one of"),
        (classification_transforms, {"rotation": SWITCH, "area": [0.2, 1]}, "remove area or those arguments"),
        (classification_transforms, {"area": [{"points": {0: 0.1, 5: 1.1}}, 1]}, "smallest <= largest"),
        (landmark_transforms, {"size": {"points": {0: 64, 3: 128}}, "hflip": 0}, "give a schedule a step"),
        (landmark_transforms, {"scale": [0.9, {"points": {0: 1.0, 5: 0.8}}], "hflip": 0}, "smallest <= largest"),
    ],
)
def test_wrong_value_of_any_epoch_is_refused_at_once(train, preset, keywords, message):
    with pytest.raises(ValueError, match=message):
        preset(train, **keywords)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hflip": LinearSchedule({0: 0, 4: 2})}, r"hflip=2.0 is not a probability .*in epoch 4 .*hflip=2.0"),
        ({"hflip": EpochRange([0, 2], 0.5, "x")}, r"hflip='x' is not a probability .*in epoch 2"),
        ({"fill": EpochRange([1, 2], "x"), "letterbox": True, "size": [8, 8]}, r"fill='x' is not .*in epoch 1"),
        ({"rotation": EpochRange([1, 2], None)}, r"rotation=None must be .*in epoch 1"),
        (
            {"size": LinearSchedule({0: 64, 9: 128})},
            r"size=.* must be whole numbers.*in epoch .*give a schedule a step",
        ),
        ({"size": EpochRange([1, 2], "x", 32)}, r"size='x' must be whole numbers.*in epoch 1"),
        ({"hflip": FunctionSchedule([].__getitem__)}, r"hflip.function=.* has no value in epoch 0: IndexError"),
    ],
)
def test_refused_value_names_argument_and_epoch(settings, message):
    with pytest.raises(ValueError, match=message):
        detection_transforms(True, **settings)


def test_error_of_a_constant_argument_has_no_note():
    with pytest.raises(TypeError) as caught:
        ScheduledTransform(v2.GaussianBlur, kernel=5)
    assert not hasattr(caught.value, "__notes__")


def test_function_need_only_be_defined_in_epochs_of_the_run():
    settings = {"hflip": FunctionSchedule([0.5, 0.4, 0.3].__getitem__), "photometric": LinearSchedule({0: 0, 8: 0.5})}
    scheduled = detection_transforms(True, **settings)
    with sample_key(epoch=2):
        assert "RandomHorizontalFlip(p=0.3)" in describe(scheduled.current())
    with sample_key(epoch=3), pytest.raises(SettingError, match=r"hflip.function=.* has no value in epoch 3"):
        scheduled.current()


def test_schedule_in_a_mapping_argument_is_refused():
    with pytest.raises(SettingError, match="has a schedule in a mapping, where it has no effect"):
        ScheduledTransform(v2.Pad, padding=2, fill={"others": {"points": {0: 1}}})


def test_value_outside_of_a_loader_names_the_setting():
    with pytest.raises(RuntimeError, match="hflip follows a schedule; current_epoch"):
        detection_transforms(True, hflip=FALLING).current()


def test_scale_may_be_a_choice_of_pairs():
    transform = classification_transforms(True, scale={"choices": [[0.5, 1.0], [1.0, 2.0]]})
    with sample_key():
        assert "scale=" in "; ".join(describe(transform.current()))


def test_flip_of_every_epoch_needs_pairs():
    with pytest.raises(SettingError, match="would label left points as right"):
        landmark_transforms(True, hflip={"epochs": [5, None], "value": 0.5})


class Crop(nn.Module):
    def forward(self, image, target):
        return image, target


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ([v2.ColorJitter(0.1)], {"p": LINEAR}, "is a transform already"),
        ([v2.ColorJitter], {"epochs": [0, 2]}, "is not a transform yet"),
        ([partial(v2.ColorJitter, 0.1)], {"epochs": [0, 2]}, "is not a transform yet"),
        ([v2.ColorJitter(0.1)], {}, "changes nothing"),
        (["ColorJitter"], {"epochs": [0, 2]}, "must be a transform"),
        ([v2.ColorJitter(0.1)], {"epochs": [2, 2]}, "first epoch after the range"),
        ([v2.RandomInvert], {"p": {"points": {0: 0.5, 4: 2}}}, "in the interval"),
    ],
)
def test_wrong_scheduled_transform_is_refused(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        ScheduledTransform(*arguments, **keywords)


def test_scheduled_transform_inside_of_another_extra_is_refused():
    inner = ScheduledTransform(v2.ColorJitter(0.1), epochs=[0, 2])
    with pytest.raises(SettingError, match="expected it in the list itself"):
        detection_transforms(True, extra_after=[v2.RandomApply([inner])])


def test_rules_of_a_preset_hold_for_scheduled_extras():
    moving = ScheduledTransform(v2.RandAugment, num_ops=EpochRange([3, 5], 2, 1))
    with pytest.raises(SettingError, match="would move pixels without their boxes"):
        detection_transforms(True, extra_after=[moving])


def test_transform_outside_of_a_loader_names_the_remedy(image):
    with pytest.raises(RuntimeError, match="pass a seed to the loader, or call dataset"):
        detection_transforms(True, hflip=LINEAR)(image, {})


def test_description_has_all_schedules_in_full():
    points = {epoch: epoch / 100 for epoch in range(40)}
    blur = ScheduledTransform(partial(v2.GaussianBlur, kernel_size=5), sigma={"points": {0: 0.1, 9: 2}}, epochs=[0, 85])
    colours = ScheduledTransform(v2.ColorJitter(0.4), epochs=[5, None])
    lines = describe(detection_transforms(True, hflip={"points": points}, extra_after=[blur, colours]))
    assert lines[0].endswith("0.38 at 38, 0.39 at 39")
    assert lines[1:4] == [
        "extra_after[0] GaussianBlur.epochs: on in epochs 0 to 84, else off",
        "extra_after[0] GaussianBlur.sigma: linear through 0.1 at 0, 2 at 9",
        "extra_after[1] ColorJitter.epochs: on from epoch 5 on, else off",
    ]
    assert lines[4:] == [
        "GaussianBlur(kernel_size=[5, 5], sigma=[0.1, 0.1])",
        "SanitizeObjects()",
        "ToFloat32(planes=False)",
    ]
    assert describe([blur, colours]) == [
        "GaussianBlur(kernel_size=5, sigma=linear through 0.1 at 0, 2 at 9) in epochs 0 to 84",
        "ColorJitter(brightness=[0.6, 1.4]) from epoch 5 on",
    ]
    invert = ScheduledTransform(v2.RandomInvert, p=LINEAR)
    assert describe(v2.RandomApply([invert])) == [
        "RandomApply([RandomInvert(p=linear through 0 at 0, 0.8 at 4)], p=0.5)"
    ]


def test_questions_about_transforms_are_answered_for_all_epochs():
    moving = ScheduledTransform(v2.RandomRotation(5), epochs=[5, None])
    assert may_move_pixels(landmark_transforms(False, extra_after=[moving]))
    assert not may_move_pixels(landmark_transforms(False, extra_after=[ScheduledTransform(v2.RGB(), epochs=[0, 1])]))
    assert not needs_target(classification_transforms(True, hflip=FALLING))
    assert needs_target(classification_transforms(True, hflip=FALLING, crop=True))
