"""The landmark and classification presets: every argument has its documented effect, evaluation is not random."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.transforms import Letterbox, RandomResizedCrop, classification_transforms, landmark_transforms
from tests.support.drawn_samples import PAIRS, draw

JITTER = {"shift": 0.1, "scale": (0.8, 1.3), "rotation": 20, "photometric": 0.5}
LANDMARKS = {"size": 48, "flip_pairs": PAIRS, **JITTER}
OBJECTS = {"size": (40, 48), "crop": True, "flip_pairs": PAIRS, "vflip": 0.5, **JITTER}
BOTH = [(landmark_transforms, LANDMARKS), (classification_transforms, OBJECTS)]


def sample():
    return draw(objects=(0,))


@pytest.mark.parametrize(("preset", "arguments"), BOTH)
def test_the_same_seed_gives_the_same_bits_whatever_the_other_generators_hold(preset, arguments):
    results = []
    for attempt in range(2):
        random.seed(attempt)
        np.random.seed(attempt)
        transform = pickle.loads(pickle.dumps(preset(True, **arguments)))
        samples = []
        for seed in range(8):
            torch.manual_seed(seed)
            samples.append(transform(*sample()))
        results.append(samples)
    for (image, target), (repeated_image, same) in zip(*results, strict=True):
        assert torch.equal(image, repeated_image)
        assert torch.equal(target["keypoints"], same["keypoints"])
    assert len({float(image.sum()) for image, _ in results[0]}) > 5


@pytest.mark.parametrize(("preset", "arguments"), BOTH)
def test_evaluation_draws_nothing_and_is_a_plain_crop(preset, arguments):
    state = torch.get_rng_state()
    image, target = preset(False, **arguments)(*sample())
    assert torch.equal(torch.get_rng_state(), state)
    plain = {name: arguments[name] for name in ("size", "crop") if name in arguments}
    expected, expected_target = preset(False, **plain)(*sample())
    assert torch.equal(image, expected)
    assert torch.equal(target["keypoints"], expected_target["keypoints"])


@pytest.mark.parametrize(("preset", "arguments"), BOTH)
def test_one_row_stays_and_fields_stay_row_aligned(preset, arguments):
    for seed in range(10):
        torch.manual_seed(seed)
        image, given = sample()
        given["pose"] = torch.tensor([4])
        image, target = preset(True, **{**arguments, "shift": 2.0})(image, given)
        size = arguments["size"]
        assert tuple(image.shape) == (3, *((size, size) if isinstance(size, int) else size))
        assert image.dtype == torch.float32
        assert 0 <= image.min() <= image.max() <= 1
        shapes = {name: tuple(target[name].shape) for name in ("boxes", "keypoints", "visibility", "crop")}
        assert shapes == {"boxes": (1, 4), "keypoints": (1, 3, 2), "visibility": (1, 3), "crop": (1, 4)}
        assert target["labels"].tolist() == [1]
        assert target["pose"].tolist() == [4]
        assert "crop" not in given


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("margin", 0.5),
        ("around", "points"),
        ("shift", 0.3),
        ("scale", (2.0, 2.5)),
        ("rotation", 30),
        ("hflip", 1.0),
        ("photometric", 1.0),
        ("to_float", False),
    ],
)
def test_each_landmark_argument_has_its_effect(name, value):
    base = {"size": 48, "hflip": 0.0, "flip_pairs": PAIRS}
    torch.manual_seed(1)
    plain, _ = landmark_transforms(True, **base)(*sample())
    changed, _ = landmark_transforms(True, **{**base, name: value})(*sample())
    assert changed.dtype != plain.dtype or not torch.equal(changed, plain)
    if name not in ("margin", "around", "to_float"):
        evaluated, _ = landmark_transforms(False, **{**base, name: value})(*sample())
        assert torch.equal(evaluated, plain)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resize", "stretch"),
        ("resize", "letterbox"),
        ("resize", None),
        ("crop", True),
        ("margin", 0.5),
        ("shift", 0.3),
        ("scale", (0.4, 0.5)),
        ("rotation", 30),
        ("hflip", 1.0),
        ("vflip", 1.0),
        ("photometric", 1.0),
        ("to_float", False),
    ],
)
def test_each_classification_argument_has_its_effect(name, value):
    base = {"size": 48, "hflip": 0.0, "flip_pairs": PAIRS, "resize": "crop"}
    torch.manual_seed(1)
    plain, _ = classification_transforms(True, **base)(*sample())
    changed, _ = classification_transforms(True, **{**base, name: value})(*sample())
    assert changed.dtype != plain.dtype or not torch.equal(changed, plain)


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
    torch.manual_seed(3)
    part = classification_transforms(True, hflip=0, to_float=False)(image)
    torch.manual_seed(3)
    assert torch.equal(part, RandomResizedCrop(224)(image))
    torch.manual_seed(3)
    large = classification_transforms(True, area=(0.9, 1), hflip=0, to_float=False)(image)
    assert not torch.equal(part, large)


@pytest.mark.parametrize(
    "settings", [{"margin": 0.1}, {"shift": 0.1}, {"scale": (0.5, 1)}, {"rotation": 5}, {"fill": 3}], ids=str
)
def test_view_arguments_show_one_view_of_the_whole_image(settings):
    image = torch.randint(0, 256, (3, 50, 60), dtype=torch.uint8)
    for train in (True, False):
        torch.manual_seed(0)
        result = classification_transforms(train, **settings)(image)
        torch.manual_seed(0)
        assert torch.equal(result, classification_transforms(train, resize="crop", **settings)(image))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"area": (0.5, 1), "crop": True}, "is for whole images"),
        ({"area": (0.5, 1), "resize": "crop"}, "is for whole images"),
        ({"area": (0, 1)}, "0 < smallest"),
        ({"area": (0.5, 1.5)}, "largest <= 1"),
    ],
)
def test_areas_that_are_none_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        classification_transforms(True, **settings)


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
    assert torch.equal(results["crop"], classification_transforms(False, size=52, resize="crop", to_float=False)(image))


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
    ],
)
def test_wrong_arguments_are_refused_in_either_split(preset, arguments, message, train):
    with pytest.raises(ValueError, match=message):
        preset(train, **{"size": 48, "flip_pairs": PAIRS, **arguments})
