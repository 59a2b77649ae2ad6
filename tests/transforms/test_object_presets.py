"""Presets draw only from torch's generator; arguments of the landmark and classification presets have their effect."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.transforms import (
    Letterbox,
    RandomResizedCrop,
    classification_transforms,
    detection_transforms,
    landmark_transforms,
)
from tests.support.drawn_samples import PAIRS, draw
from tests.support.seeded import seeded

JITTER = {"shift": 0.1, "scale": (0.8, 1.3), "rotation": 20, "photometric": 0.5}
LANDMARKS = {"size": 48, "flip_pairs": PAIRS, **JITTER}
OBJECTS = {"size": (40, 48), "crop": True, "flip_pairs": PAIRS, "vflip": 0.5, **JITTER}
BOTH = [(landmark_transforms, LANDMARKS), (classification_transforms, OBJECTS)]
DETECTION = {
    "size": (48, 64),
    "letterbox": True,
    "flip_pairs": PAIRS,
    "vflip": 0.5,
    "photometric": 0.5,
    "zoom_out": 0.5,
    "iou_crop": 0.5,
    "rotation": 20,
}


def sample():
    return draw(objects=(0,))


@pytest.mark.parametrize(("preset", "arguments"), [*BOTH, (detection_transforms, DETECTION)])
def test_only_torchs_generator_decides_the_bits_and_others_are_left_alone(preset, arguments):
    results = []
    for attempt in range(2):
        random.seed(attempt)
        np.random.seed(attempt)
        states = random.getstate(), np.random.get_state()[1].tolist()
        transform = pickle.loads(pickle.dumps(preset(True, **arguments)))
        results.append([seeded(seed, transform, *sample()) for seed in range(8)])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    for (image, target), (repeated_image, repeated_target) in zip(*results, strict=True):
        assert torch.equal(image, repeated_image)
        for name in ("boxes", "keypoints", "labels"):
            assert torch.equal(target[name], repeated_target[name])
    assert len({float(image.sum()) for image, _ in results[0]}) > 5


@pytest.mark.parametrize(("preset", "arguments"), [*BOTH, (detection_transforms, DETECTION)])
def test_evaluation_draws_nothing_and_ignores_random_transforms(preset, arguments):
    state = torch.get_rng_state()
    image, target = preset(False, **arguments)(*sample())
    assert torch.equal(torch.get_rng_state(), state)
    plain = {name: arguments[name] for name in ("size", "crop", "letterbox") if name in arguments}
    expected, expected_target = preset(False, **plain)(*sample())
    assert torch.equal(image, expected)
    assert torch.equal(target["keypoints"], expected_target["keypoints"])


@pytest.mark.parametrize(("preset", "arguments"), BOTH)
def test_one_row_stays_and_fields_stay_row_aligned(preset, arguments):
    for seed in range(10):
        image, source_target = sample()
        source_target["pose"] = torch.tensor([4])
        image, target = seeded(seed, preset(True, **{**arguments, "shift": 2.0}), image, source_target)
        size = arguments["size"]
        assert tuple(image.shape) == (3, *((size, size) if isinstance(size, int) else size))
        assert image.dtype == torch.float32
        assert 0 <= image.min() <= image.max() <= 1
        shapes = {name: tuple(target[name].shape) for name in ("boxes", "keypoints", "visibility", "crop")}
        assert shapes == {"boxes": (1, 4), "keypoints": (1, 3, 2), "visibility": (1, 3), "crop": (1, 4)}
        assert target["labels"].tolist() == [1]
        assert target["pose"].tolist() == [4]
        assert "crop" not in source_target


COMMON_EFFECTS = {"margin": [0.5], "shift": [0.3], "rotation": [30], "hflip": [1.0], "photometric": [1.0]}
EFFECTS = {
    landmark_transforms: {"around": ["points"], "scale": [(2.0, 2.5)]},
    classification_transforms: {
        "resize": ["stretch", "letterbox", None],
        "crop": [True],
        "scale": [(0.4, 0.5)],
        "vflip": [1.0],
    },
}
CASES = [
    (preset, name, value)
    for preset, effects in EFFECTS.items()
    for name, values in (COMMON_EFFECTS | effects | {"to_float": [False]}).items()
    for value in values
]


@pytest.mark.parametrize(("preset", "name", "value"), CASES)
def test_each_argument_has_its_effect_and_random_ones_only_in_training(preset, name, value):
    base = {"size": 48, "hflip": 0.0, "flip_pairs": PAIRS}
    base |= {"resize": "crop"} if preset is classification_transforms else {}
    plain, _ = preset(True, **base)(*sample())
    changed, _ = seeded(1, preset(True, **{**base, name: value}), *sample())
    assert changed.dtype != plain.dtype or not torch.equal(changed, plain)
    if name in ("shift", "scale", "rotation", "hflip", "vflip", "photometric"):
        evaluated, _ = preset(False, **{**base, name: value})(*sample())
        assert torch.equal(evaluated, plain)


@pytest.mark.parametrize("preset", [landmark_transforms, classification_transforms])
def test_fill_shows_beyond_the_image(preset):
    extra = {"hflip": 0.0, "to_float": False, "margin": 2.0, "size": 48}
    extra |= {"resize": "crop"} if preset is classification_transforms else {}
    image, _ = preset(False, **extra, fill=77)(*sample())
    assert (image[:, 0, 0] == 77).all()


def test_whole_images_are_shown_as_models_of_imagenet_are_trained():
    coarse = torch.randint(0, 256, (3, 6, 8), dtype=torch.uint8)
    image = v2.functional.resize(coarse, [300, 400])
    middle = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])(image).float()
    result = classification_transforms(False, to_float=False)(image).float()
    assert result.shape == (3, 224, 224)
    assert (result - middle).abs().mean() < 2  # resized once here, from whole pixels
    part = seeded(3, classification_transforms(True, hflip=0, to_float=False), image)
    assert torch.equal(part, seeded(3, RandomResizedCrop(224), image))
    large = seeded(3, classification_transforms(True, area=(0.9, 1), hflip=0, to_float=False), image)
    assert not torch.equal(part, large)


@pytest.mark.parametrize(
    "settings", [{"margin": 0.1}, {"shift": 0.1}, {"scale": (0.5, 1)}, {"rotation": 5}, {"fill": 3}], ids=str
)
def test_view_arguments_show_one_view_of_the_whole_image(settings):
    image = torch.randint(0, 256, (3, 50, 60), dtype=torch.uint8)
    for train in (True, False):
        result = seeded(0, classification_transforms(train, **settings), image)
        assert torch.equal(result, seeded(0, classification_transforms(train, resize="crop", **settings), image))


def test_images_alone_and_images_with_a_label_are_classified():
    image, _ = sample()
    transform = classification_transforms(True, size=(30, 40), resize="crop", rotation=10, vflip=0.5)
    assert transform(image).shape == (3, 30, 40)
    for label in (3, torch.tensor(3), torch.tensor([0.0, 1.0])):
        result, same = transform(image, label)
        assert result.shape == (3, 30, 40)
        assert same is label


def test_classification_shows_the_whole_image_as_resizing_would():
    image, _ = draw(height=100, width=200)
    results = {
        fit: classification_transforms(False, size=52, resize=fit, to_float=False)(image)
        for fit in ("crop", "stretch", "letterbox")
    }
    classic = {
        "crop": v2.Compose([v2.Resize(52), v2.CenterCrop(52)])(image),
        "stretch": v2.Resize((52, 52))(image),
        "letterbox": Letterbox((52, 52))(image),
    }
    for fit, expected in classic.items():
        # but for the rims, where one blends with what lies beyond and the other does not
        off = (results[fit].float() - expected.float()).abs()[:, 15:37, 2:-2]
        assert off.max() <= 1
    assert not results["letterbox"][:, :12].any()


def test_flips_without_declared_pairs_are_refused_at_once_for_landmarks():
    with pytest.raises(
        ValueError, match=r"hflip=0\.5 .*flip_pairs=\[\] if every point keeps its name, or pass hflip=0"
    ):
        landmark_transforms(True, size=48)
    landmark_transforms(False, size=48)
    landmark_transforms(True, size=48, hflip=0)
    landmark_transforms(True, size=48, flip_pairs=[])
    with pytest.raises(ValueError, match="flip_pairs=None but the target has"):
        classification_transforms(True, size=48)(*sample())


def test_a_degenerate_box_is_still_a_crop():
    image, target = sample()
    point = torch.tensor([[30.0, 40, 30, 40]])
    target["boxes"] = tv_tensors.BoundingBoxes(point, format="XYXY", canvas_size=(110, 150))
    result, moved = landmark_transforms(True, **LANDMARKS)(image, target)
    assert result.shape == (3, 48, 48)
    assert torch.isfinite(moved["keypoints"]).all()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    ("preset", "arguments", "message"),
    [
        (landmark_transforms, {"hflip": 1.5}, "hflip=1.5"),
        (landmark_transforms, {"photometric": -1}, "photometric=-1"),
        (landmark_transforms, {"around": "middle"}, "around='middle'"),
        (landmark_transforms, {"rotation": 200}, "rotation=200"),
        (landmark_transforms, {"flip_pairs": [(0, 0)]}, "twice"),
        (landmark_transforms, {"size": 0}, "size=0"),
        (landmark_transforms, {"fill": 256}, "fill=256 .* from 0 to 255"),
        (classification_transforms, {"fill": 0.5}, "fill=0.5"),
        (classification_transforms, {"vflip": 1.5}, "vflip=1.5"),
        (classification_transforms, {"resize": "pad"}, "fit='pad'"),
        (classification_transforms, {"scale": (0, 1)}, "scale"),
        (classification_transforms, {"size": (4,)}, "height, width"),
        (classification_transforms, {"area": (0.5, 1), "crop": True}, "is for whole images"),
        (classification_transforms, {"area": (0.5, 1), "resize": "crop"}, "is for whole images"),
        (classification_transforms, {"area": (0, 1)}, "0 < smallest"),
        (classification_transforms, {"area": (0.5, 1.5)}, "largest <= 1"),
    ],
)
def test_wrong_arguments_are_refused_in_either_split(preset, arguments, message, train):
    with pytest.raises(ValueError, match=message):
        preset(train, **{"size": 48, "flip_pairs": PAIRS, **arguments})
