"""An image read by the transform that shows it: the draws and targets of a decoded one, its pixels within the bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.images import ChangedImage, DecodedImage, ImageRegion, LazyImage, decode_image, open_image
from lit_loader.memory import batch_memory
from lit_loader.transforms import (
    CropToObjects,
    DecodeAwareCompose,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ToFloat32,
    ToUInt8,
    classification_transforms,
    detection_transforms,
    landmark_transforms,
)
from tests.support.photo_like import jpeg, photo_like
from tests.support.read_both_ways import HEIGHT, WIDTH, BatchMemory, assert_within_bound, both, target
from tests.support.seeded import seeded

PAIRS = ((0, 1),)


def read_in_full(transform):
    return DecodeAwareCompose([Nothing(), *transform.transforms])


class Nothing(nn.Module):
    """A user's transform, which knows ordinary pixels."""

    def forward(self, image, target):
        assert isinstance(image, tv_tensors.Image)
        assert image.shape == (3, HEIGHT, WIDTH)
        return image, target


SAME = {  # nothing is shrunk to half: the same bits
    "detection at its size": (detection_transforms(True), 3),
    "detection enlarged": (detection_transforms(True, shorter_sides=[240, 300], max_size=400), 3),
    "detection, zoom out first": (detection_transforms(True, size=60, zoom_out=1), 3),
    "detection, crop first": (detection_transforms(True, size=60, iou_crop=1), 3),
    "detection, rotation first": (detection_transforms(True, size=60, rotation=10), 3),
    "classification": (classification_transforms(True, size=200, resize="crop", scale=(0.7, 1), shift=0.2), 0),
    "random resized crop": (DecodeAwareCompose([v2.RandomResizedCrop(250), RandomHorizontalFlip(flip_pairs=PAIRS)]), 3),
    "a crop after a flip": (
        DecodeAwareCompose([RandomHorizontalFlip(p=1, flip_pairs=PAIRS), v2.RandomResizedCrop(30)]),
        3,
    ),
    "nearest": (DecodeAwareCompose([v2.Resize(60, interpolation=v2.InterpolationMode.NEAREST)]), 3),
    "no antialiasing": (DecodeAwareCompose([v2.Resize(60, antialias=False)]), 3),
    "a user's transform first": (read_in_full(detection_transforms(True, size=60, flip_pairs=PAIRS)), 3),
    "landmarks, enlarged": (landmark_transforms(True, size=200, rotation=20, flip_pairs=PAIRS), 1),
}
SHRUNK = {
    "shorter side": (detection_transforms(True, size=90, flip_pairs=PAIRS), 3),
    "drawn shorter side": (detection_transforms(True, shorter_sides=[50, 61, 100], max_size=120, flip_pairs=PAIRS), 3),
    "longest side": (detection_transforms(True, max_size=77, hflip=0, vflip=1, flip_pairs=PAIRS), 3),
    "stretched": (detection_transforms(True, size=[40, 90], flip_pairs=PAIRS), 3),
    "letterbox": (detection_transforms(True, size=[64, 64], letterbox=True, fill=9, flip_pairs=PAIRS), 3),
    "evaluation": (detection_transforms(False, size=60), 3),
    "colours and both flips": (
        detection_transforms(True, size=90, photometric=0.5, vflip=0.5, flip_pairs=PAIRS, to_float=False),
        3,
    ),
    "middle": (classification_transforms(False, size=64, resize="crop"), 0),
    "views": (classification_transforms(True, size=40, resize="crop", scale=(0.5, 1), shift=0.2, vflip=0.5), 0),
    "views with a rim": (classification_transforms(True, size=40, resize="letterbox", shift=0.3, fill=90), 0),
    "turned views": (classification_transforms(True, size=40, resize="crop", rotation=30, photometric=0.5), 0),
    "object crops": (classification_transforms(True, size=24, crop=True, margin=0.5, shift=0.2, flip_pairs=PAIRS), 1),
    "landmarks": (landmark_transforms(True, size=28, shift=0.1, flip_pairs=PAIRS), 1),
    "landmarks, turned and bent": (
        landmark_transforms(True, size=28, rotation=30, scale=(0.8, 1.3), flip_pairs=PAIRS),
        1,
    ),
    "random crop": (DecodeAwareCompose([RandomResizedCrop(40), RandomHorizontalFlip(flip_pairs=PAIRS)]), 3),
    "random crop, larger": (DecodeAwareCompose([RandomResizedCrop(70), RandomHorizontalFlip(flip_pairs=PAIRS)]), 3),
    "torchvision's crop": (DecodeAwareCompose([v2.RandomResizedCrop(40), RandomHorizontalFlip(flip_pairs=PAIRS)]), 3),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "image.jpg"
    path.write_bytes(jpeg(photo_like(HEIGHT, WIDTH)))
    return path


def without_points(transform):
    flips = [part for part in transform.transforms if isinstance(part, RandomHorizontalFlip)]
    return all(flip.flip_pairs is None for flip in flips)


@pytest.mark.parametrize("name", SAME)
def test_lazy_images_have_exact_bits_unless_shrunk_to_half(path, name):
    transform, num_objects = SAME[name]
    make_target = _no_points if without_points(transform) else target
    for seed in range(4):
        assert both(transform, path, num_objects, seed=seed, make_target=make_target).max() == 0


def _no_points(num_objects):
    return {k: v for k, v in target(num_objects).items() if k not in ("keypoints", "visibility")}


@pytest.mark.parametrize("name", SHRUNK)
def test_targets_and_draws_are_equal_and_pixels_within_the_published_bound(path, name):
    transform, num_objects = SHRUNK[name]
    changed = False
    for seed in range(8):
        difference = both(transform, path, num_objects, seed=seed)
        changed |= bool(difference.max() > 0)
        assert_within_bound(difference)
    assert changed, "nothing was decoded at a smaller size"


def test_a_resize_of_part_of_a_block_stays_where_the_whole_image_is(tmp_path):
    """317 columns at 1/8 are 40: taken for the whole width, the right end would lie 1% off."""
    ramp = np.broadcast_to(np.linspace(0, 255, WIDTH)[None, :, None], (HEIGHT, WIDTH, 3)).astype(np.uint8)
    path = tmp_path / "ramp.jpg"
    path.write_bytes(jpeg(Image.fromarray(ramp), quality=98))
    assert both(DecodeAwareCompose([v2.Resize(29)]), path, 0, seed=0).mean() < 0.8


def test_resampled_crops_of_the_package_begin_at_whole_pixels(path, monkeypatch):
    """A box of parts of pixels takes a third more time."""
    monkeypatch.setattr("lit_loader.images.resampling._resize_with_pillow", lambda *_: pytest.fail("parts"))
    transform = DecodeAwareCompose([RandomResizedCrop(40, scale=(0.2, 1.0))])
    for seed in range(300):
        seeded(seed, transform.read, open_image(path), {})


def test_a_turned_view_too_large_to_cut_out_has_exact_bits(path, monkeypatch):
    monkeypatch.setattr("lit_loader.images.views._MAX_CUT_PIXELS", 1 << 10)
    view = CropToObjects(size=250, around="image", margin=0, shift=0.9, rotation=45)
    for seed in range(12):
        # Nothing is shrunk to half.
        assert both(DecodeAwareCompose([view]), path, 0, seed=seed).max() == 0


def test_a_crop_that_ends_with_the_image_has_an_equal_target_at_an_eighth(path):
    """At 1/8 the image's 317 columns are 39 and a part of one."""
    full_crop = RandomResizedCrop((29, 39), scale=(1, 1), ratio=(WIDTH / HEIGHT, WIDTH / HEIGHT))
    assert both(DecodeAwareCompose([full_crop]), path, 3, seed=0).max() > 0


class Source(LazyImage):
    """A lazy image that records requests and postpones steps."""

    size = (HEIGHT, WIDTH)

    def __init__(self):
        self.requests = []

    def read(self):
        self.requests.append("all")
        return torch.zeros((3, HEIGHT, WIDTH), dtype=torch.uint8)

    def read_region(self, region, *, zoom):
        self.requests.append((round(zoom, 3), region))
        return ImageRegion(torch.zeros((3, HEIGHT, WIDTH), dtype=torch.uint8), 0, 0, 1.0)

    def changed(self, step):
        return ChangedImage(self, step)


def zoom(side, *, of):
    """The zoom that a small result asks for: 24 pixels more along its shorter side."""
    return round((side + 24) / of, 3)


def test_the_first_resize_or_crop_asks_once_for_what_it_shows():
    full_region = (0, 0, WIDTH, HEIGHT)
    for transform, expected_requests in (
        (
            DecodeAwareCompose([RandomHorizontalFlip(p=1, flip_pairs=PAIRS), v2.Resize([60, 50])]),
            (zoom(50, of=50 * HEIGHT / 60), full_region),
        ),
        (classification_transforms(False, size=64, resize="crop"), (zoom(64, of=HEIGHT), (39, 0, 278, HEIGHT))),
        (DecodeAwareCompose([CropToObjects(size=32, margin=0)]), (zoom(32, of=150), (10, 30, 160, 180))),
        (DecodeAwareCompose([v2.RandomZoomOut(p=1), v2.Resize(9)]), "all"),
        (
            DecodeAwareCompose([v2.Compose([v2.Resize([120, 159])]), v2.Resize([60, 50])]),
            (zoom(120, of=HEIGHT), full_region),
        ),
        (DecodeAwareCompose([v2.Resize([200, 210])]), (round(200 / HEIGHT, 3), full_region)),
        (DecodeAwareCompose([ToUInt8()]), "all"),
    ):
        source = Source()
        image, _ = transform.read(
            source, target(1) if type(expected_requests) is str or expected_requests[0] != zoom(64, of=HEIGHT) else {}
        )
        assert source.requests == [expected_requests]
        assert isinstance(image, tv_tensors.Image)


@pytest.mark.parametrize("label", [3, torch.tensor(3), None])
def test_target_without_a_dict_needs_no_full_decode(label):
    transform = DecodeAwareCompose([RandomHorizontalFlip(p=1), v2.Resize([60, 50])])
    source = Source()
    image, result = transform.read(source, label)
    assert source.requests == [(zoom(50, of=50 * HEIGHT / 60), (0, 0, WIDTH, HEIGHT))]
    assert result is label
    assert image.shape == (3, 60, 50)


def test_to_batch_float_has_the_bits_of_to_dtype_for_every_value_and_any_layout():
    values = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).expand(3, 16, 16)
    for plain in (values, values.contiguous(), values.transpose(1, 2)):
        image = tv_tensors.Image(plain)
        theirs = v2.ToDtype(torch.float32, scale=True)(image, {"labels": torch.tensor([1])})
        ours = ToFloat32()(image, {"labels": torch.tensor([1])})
        assert torch.equal(ours[0], theirs[0])
        assert type(ours[0]) is tv_tensors.Image
        assert ours[0].is_contiguous()
        assert ours[1]["labels"].dtype == torch.int64
    assert torch.equal(ToFloat32()(plain), v2.ToDtype(torch.float32, scale=True)(plain))
    floats = tv_tensors.Image(torch.rand(3, 4, 4, dtype=torch.float64))
    assert torch.equal(ToFloat32()(floats), v2.ToDtype(torch.float32, scale=True)(floats))


def test_to_uint8_gives_channels_last_in_memory_of_the_batch():
    image = tv_tensors.Image(torch.randint(256, (8, 9, 3), dtype=torch.uint8).permute(2, 0, 1))
    for memory in (None, BatchMemory()):
        with batch_memory.using(memory):
            for plain in (image, image.contiguous(), image.transpose(1, 2)):
                stored = plain.as_subclass(tv_tensors.Image)
                placed = ToUInt8()(stored)
                assert batch_memory.is_channels_last(placed)
                assert torch.equal(placed, stored)
                assert (placed is stored) is (memory is None and plain is image)


def test_to_uint8_of_one_channel_is_contiguous_in_memory_of_the_batch():
    with batch_memory.using(memory := BatchMemory()):
        result = ToUInt8()(tv_tensors.Image(torch.randint(256, (1, 8, 9), dtype=torch.uint8)))
    assert [allocation.shape for allocation in memory.allocations] == [result.shape]
    assert result.is_contiguous()


def test_to_uint8_passes_what_is_no_uint8_image_on_the_cpu():
    mask = tv_tensors.Mask(torch.zeros(4, 5, dtype=torch.uint8))
    for value in (torch.rand(3, 4, 5), torch.zeros(2, 3, 4, 5, dtype=torch.uint8), mask):
        assert ToUInt8()(value) is value


@pytest.mark.parametrize("to_float", [True, False])
@pytest.mark.parametrize("read", [True, False])
def test_the_last_step_of_every_preset_writes_into_the_memory_of_the_batch(path, to_float, read):
    presets = (
        (detection_transforms(True, size=100, flip_pairs=PAIRS, to_float=to_float), 2),
        (classification_transforms(True, size=32, resize="crop", to_float=to_float), 0),
        (classification_transforms(True, size=32, hflip=0, to_float=to_float), 0),
        (classification_transforms(True, size=32, hflip=1, to_float=to_float), 0),
        (landmark_transforms(True, size=32, flip_pairs=PAIRS, to_float=to_float), 1),
    )
    for transform, num_objects in presets:
        memory = BatchMemory()
        with batch_memory.using(memory):
            call = transform.read if read else transform
            image = open_image(path) if read else tv_tensors.Image(decode_image(path))
            result, _ = call(image, target(num_objects) if num_objects else {})
        assert [allocation.data_ptr() for allocation in memory.allocations] == [result.data_ptr()]
        assert result.dtype == (torch.float32 if to_float else torch.uint8)
        is_list = transform is presets[0][0]
        assert batch_memory.is_channels_last(result) if is_list or not to_float else result.is_contiguous()
        assert type(result) is tv_tensors.Image


def test_shorter_sides_are_drawn_in_training_and_the_largest_is_taken_otherwise():
    image = tv_tensors.Image(torch.zeros((3, 20, 40), dtype=torch.uint8))
    plain = {"boxes": tv_tensors.BoundingBoxes(torch.zeros((0, 4)), format="XYXY", canvas_size=(20, 40))}
    train = detection_transforms(True, shorter_sides=[10, 30, 20], max_size=50)
    assert {train(image, plain)[0].shape[1] for _ in range(60)} == {10, 25, 20}
    evaluation = detection_transforms(False, shorter_sides=[10, 30, 20])
    assert {evaluation(image, plain)[0].shape[1] for _ in range(5)} == {30}


class Darken(nn.Module):
    """A user's transform of decoded images."""

    def forward(self, image, target):
        return image // 2, target


@pytest.mark.parametrize("extra_before", [[], [Darken()], [v2.Compose([Darken(), RandomHorizontalFlip(p=1)])]])
def test_read_first_and_read_rest_make_the_sample_of_read(path, extra_before):
    settings = {"size": 90, "flip_pairs": PAIRS, "extra_before": extra_before}
    transform = detection_transforms(True, photometric=0.5, iou_crop=0.5, **settings)

    def in_two_parts():
        image, first_target = transform.read_first(open_image(path), target(3))
        return image, transform.read_rest(image, first_target)

    for seed in range(4):
        expected = seeded(seed, transform.read, open_image(path), target(3))
        image, sample = seeded(seed, in_two_parts)
        assert isinstance(image, LazyImage) == (not extra_before)
        assert torch.equal(sample[0], expected[0])
        assert sample[1].keys() == expected[1].keys()
        assert all(torch.equal(torch.as_tensor(sample[1][key]), torch.as_tensor(expected[1][key])) for key in sample[1])


def test_read_first_applies_only_the_transforms_before_mixing():
    transform = DecodeAwareCompose([v2.Compose([Darken(), Darken()]), RandomHorizontalFlip(p=1)], before_mixing=1)
    assert transform.before_mixing == 2
    image = tv_tensors.Image(torch.full((3, 8, 8), 200, dtype=torch.uint8))
    result, _ = transform.read_first(DecodedImage(image.as_subclass(torch.Tensor)), {})
    assert int(result.max()) == 50


def test_read_first_without_transforms_before_mixing_keeps_image_lazy():
    transform = DecodeAwareCompose([v2.Resize(8)])
    image = DecodedImage(torch.zeros((3, 16, 16), dtype=torch.uint8))
    assert transform.read_first(image, {}) == (image, {})


@pytest.mark.parametrize("before_mixing", [-1, 2])
def test_number_of_transforms_before_mixing_must_be_in_range(before_mixing):
    with pytest.raises(ValueError, match="before_mixing"):
        DecodeAwareCompose([v2.Resize(8)], before_mixing=before_mixing)
