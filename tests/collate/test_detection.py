"""Detection collation: the three image modes, targets and further elements."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from lit_loader.collate import DetectionCollate, PaddedBatch, batch_images, batch_targets, detection_collate


def make_sample(index, *, height=8, width=6, num_boxes=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(index)
    pixels = torch.randint(0, 255, (3, height, width), generator=generator).to(dtype)
    boxes = torch.rand((num_boxes, 4), generator=generator)
    target = {
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
        "labels": torch.arange(1, num_boxes + 1),
        "image_id": index,
    }
    return tv_tensors.Image(pixels), target


UNEQUAL = [(8, 6), (5, 9), (7, 7)]


def make_unequal(**kwargs):
    return [make_sample(i, height=h, width=w, num_boxes=i, **kwargs) for i, (h, w) in enumerate(UNEQUAL)]


def test_default_stacks_images_and_converts_rows():
    samples = [
        (torch.rand(3, 4, 5), [[0, 0, 2, 2, 1], [1, 1, 3, 3, 0]]),
        (torch.rand(3, 4, 5), np.array([[0, 1, 2, 3, 4]], dtype=np.float64)),
        (torch.rand(3, 4, 5), torch.tensor([[5, 6, 7, 8, 9]])),
    ]
    batch = detection_collate(samples)
    assert type(batch) is tuple
    images, targets = batch
    assert torch.equal(images, torch.stack([image for image, _ in samples], 0))
    assert [type(target) for target in targets] == [torch.Tensor] * 3
    for target, (_, rows) in zip(targets, samples, strict=True):
        assert torch.equal(target, torch.FloatTensor(np.asarray(rows)))


def test_images_without_boxes_give_no_rows_of_the_batches_width():
    image = torch.zeros(3, 2, 2)
    _, targets = detection_collate([(image, []), (image, np.empty((0, 5)))])
    assert [tuple(target.shape) for target in targets] == [(0, 5), (0, 5)]
    _, targets = detection_collate([(image, []), (image, [[1] * 15])])
    assert [tuple(target.shape) for target in targets] == [(0, 15), (1, 15)]
    assert targets[0].dtype == torch.float32


def test_a_batch_shares_no_memory_with_arrays_or_images_of_the_dataset():
    rows = np.ones((1, 5), dtype=np.float32)
    image = torch.zeros(3, 2, 2)
    images, (target,) = detection_collate([(image, rows)])
    images += 1
    target += 1
    assert (rows == 1).all()
    assert (image == 0).all()


def test_read_only_arrays_are_accepted():
    rows = np.ones((1, 5), dtype=np.float32)
    rows.setflags(write=False)
    assert detection_collate([(torch.zeros(3, 2, 2), rows)])[1][0].shape == (1, 5)


def test_dict_targets_are_kept_whole_with_their_boxes():
    samples = [make_sample(0), make_sample(1, num_boxes=0)]
    images, targets = detection_collate(samples)
    assert type(images) is torch.Tensor
    assert images.shape == (2, 3, 8, 6)
    for target, (_, sample_target) in zip(targets, samples, strict=True):
        assert target is sample_target
        assert isinstance(target["boxes"], tv_tensors.BoundingBoxes)
        assert target["boxes"].canvas_size == (8, 6)


def test_unequal_sizes_are_refused_with_sizes_and_remedy():
    with pytest.raises(ValueError, match=r'\(8, 6\), \(5, 9\), \(7, 7\).*images="list" or images="pad"'):
        detection_collate(make_unequal())


def test_list_mode_does_not_change_images():
    samples = make_unequal()
    images, targets = detection_collate(samples, images="list")
    assert [type(image) for image in images] == [torch.Tensor] * 3
    assert all(torch.equal(image, pixels) for image, (pixels, _) in zip(images, samples, strict=True))
    assert len(targets) == 3


@pytest.mark.parametrize("size_divisor", [1, 4, 32])
@pytest.mark.parametrize(("dtype", "pad_value"), [(torch.uint8, 7), (torch.float32, 0.5)])
def test_pad_gives_pixels_mask_and_sizes(size_divisor, dtype, pad_value):
    samples = make_unequal(dtype=dtype)
    batch = detection_collate(samples, images="pad", size_divisor=size_divisor, pad_value=pad_value)
    assert isinstance(batch, PaddedBatch)
    height, width = (-(-side // size_divisor) * size_divisor for side in (8, 9))
    assert batch.images.shape == (3, 3, height, width)
    assert batch.images.dtype == dtype
    assert batch.sizes.tolist() == [list(size) for size in UNEQUAL]
    assert batch.sizes.dtype == torch.int64
    for i, (image, _) in enumerate(samples):
        h, w = UNEQUAL[i]
        assert torch.equal(batch.images[i, :, :h, :w], image.as_subclass(torch.Tensor))
        assert batch.mask[i, :h, :w].all()
        assert batch.mask[i].sum() == h * w
        assert (batch.images[i][:, ~batch.mask[i]] == pad_value).all()
    assert batch.targets == [target for _, target in samples]
    assert batch.extras == ()


@pytest.mark.parametrize("value", [0.5, 256, -1])
def test_a_pad_value_outside_the_images_type_is_refused(value):
    with pytest.raises(ValueError, match=r"from 0 to 255 for torch\.uint8 images, got pad_value="):
        detection_collate([make_sample(0, dtype=torch.uint8)], images="pad", pad_value=value)


def test_further_elements_are_collated():
    image_and_number = [(*make_sample(i), i) for i in range(2)]
    assert detection_collate(image_and_number)[2].tolist() == [0, 1]
    assert detection_collate(image_and_number, images="pad").extras[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    "arguments", [{"images": "stack"}, {"images": "list"}, {"images": "pad", "size_divisor": 4, "pad_value": 1}]
)
def test_class_pickles_and_equals_function(arguments):
    samples = [make_sample(i, num_boxes=i) for i in range(3)]
    function = pickle.loads(pickle.dumps(DetectionCollate(**arguments)))
    assert function == DetectionCollate(**arguments)
    ours = function(samples)
    theirs = detection_collate(samples, **arguments)
    assert type(ours) is type(theirs)
    assert torch.equal(torch.stack(list(ours[0])), torch.stack(list(theirs[0])))


def test_a_padded_batch_pickles():
    batch = detection_collate(make_unequal(), images="pad")
    copy = pickle.loads(pickle.dumps(batch))
    assert isinstance(copy, PaddedBatch)
    assert torch.equal(copy.mask, batch.mask)
    assert copy.targets[2]["boxes"].canvas_size == (7, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": "crop"}, "images='crop'"),
        ({"images": "pad", "size_divisor": 0}, "size_divisor=0"),
        ({"images": "stack", "size_divisor": 32}, "without effect"),
        ({"images": "list", "pad_value": 1}, "without effect"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DetectionCollate(**arguments)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([], ValueError, "empty batch"),
        ([torch.zeros(3, 2, 2)], TypeError, "default_collate"),
        ([(torch.zeros(3, 2, 2), []), (torch.zeros(3, 2, 2), [], 1)], ValueError, r"\[2, 3\] elements"),
        ([("pixels", [])], TypeError, "a tensor, got a str"),
        ([(torch.zeros(2, 2), [])], ValueError, r"shape \(C, H, W\), got \(2, 2\)"),
        ([(torch.zeros(3, 2, 2), []), (torch.zeros(1, 2, 2), [])], ValueError, "one dtype and number of channels"),
        ([(torch.zeros(3, 2, 2), 3)], ValueError, r"N x K.*default_collate"),
    ],
)
def test_invalid_samples_are_refused_with_a_remedy(batch, error, message):
    with pytest.raises(error, match=message):
        detection_collate(batch)


def test_images_and_targets_of_every_mode_come_one_by_one():
    samples = [(torch.rand(3, height, width), {"boxes": torch.zeros(1, 4)}) for height, width in ((4, 6), (5, 2))]
    for mode in ("list", "pad"):
        batch = DetectionCollate(images=mode)(samples)
        assert [torch.equal(a, b) for a, (b, _) in zip(batch_images(batch), samples, strict=True)] == [True] * 2
        assert [target["boxes"].shape for target in batch_targets(batch)] == [(1, 4)] * 2
    stacked = DetectionCollate()([samples[0], samples[0]])
    assert [image.shape for image in batch_images(stacked)] == [(3, 4, 6)] * 2
    with pytest.raises(TypeError, match=r"columns \['boxes', 'labels'\]; collate them to one dict per image"):
        batch_targets((stacked[0], {"boxes": torch.zeros(2, 1, 4), "labels": torch.zeros(2, 1)}))
