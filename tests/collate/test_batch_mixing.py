"""Mixing of batches by torchvision: soft labels, dtypes, unknown labels, schedules and refusals."""

from __future__ import annotations

import pickle

import pytest
import torch
from torchvision.transforms import v2

from lit_loader import EpochRange, FunctionSchedule, sample_key
from lit_loader.collate import BatchMixing, ClassificationCollate, batch_labels
from lit_loader.collate.batches import counted_labels
from lit_loader.errors import SettingError
from lit_loader.schedules import BatchChoice

LABELS = (0, 2, 1, 2)


def samples(*, dtype=torch.float32, labels=LABELS):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (len(labels), 3, 8, 10), generator=generator, dtype=torch.uint8)
    images = pixels if dtype is torch.uint8 else pixels.to(dtype) / 255
    return [(image, label, number, False) for number, (image, label) in enumerate(zip(images, labels, strict=True))]


def collate(mixing, batch=None, *, position=0, epoch=0, **arguments):
    arguments = arguments or {"num_classes": 3}
    with sample_key(position=position, epoch=epoch):
        return ClassificationCollate(mixing=mixing, **arguments)(samples() if batch is None else batch)


@pytest.mark.parametrize(("name", "kind"), [("mixup", v2.MixUp), ("cutmix", v2.CutMix)])
def test_images_and_labels_are_torchvisions(name, kind):
    batch = collate(BatchMixing(**{name: 1.0, f"{name}_alpha": 0.7}))
    plain = ClassificationCollate()(samples())
    with sample_key():
        torch.rand(())  # the draw of the method
        images, labels = kind(alpha=0.7, num_classes=3)(plain.images, plain.labels)
    assert torch.equal(batch.images, images)
    assert torch.equal(batch.labels, labels)
    assert batch.labels.dtype == torch.float32
    assert not torch.equal(images, plain.images)
    torch.testing.assert_close(batch.labels.sum(dim=1), torch.ones(4))
    assert batch.image_ids.tolist() == [0, 1, 2, 3]


def test_unmixed_batch_has_one_hot_labels_and_its_own_pixels():
    batch = collate(BatchMixing())
    assert torch.equal(batch.images, ClassificationCollate()(samples()).images)
    assert torch.equal(batch.labels, torch.eye(3)[list(LABELS)])
    assert batch_labels(batch).tolist() == list(LABELS)


def test_each_method_mixes_its_share_of_batches():
    mixing = BatchMixing(mixup=0.3, cutmix=0.5, mixup_alpha=5.0, cutmix_alpha=5.0)
    plain = ClassificationCollate()(samples()).images
    counts = {"none": 0, "mixup": 0, "cutmix": 0}
    for position in range(400):
        images = collate(mixing, position=position).images
        # CutMix leaves every pixel the value of one of the two images.
        is_cut = ((images == plain) | (images == plain.roll(1, 0))).all()
        counts["none" if torch.equal(images, plain) else "cutmix" if is_cut else "mixup"] += 1
    # Four standard deviations are 10 %.
    for name, share in (("none", 0.2), ("mixup", 0.3), ("cutmix", 0.5)):
        assert counts[name] / 400 == pytest.approx(share, abs=0.1)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_every_image_counts_once_in_a_mixed_batch(name):
    for position in range(20):
        labels = collate(BatchMixing(**{name: 1.0}), position=position).labels
        torch.testing.assert_close(labels.sum(dim=0), torch.tensor([1.0, 1.0, 2.0]))


def test_classes_are_counted_by_their_proportions():
    labels, counts = counted_labels(collate(BatchMixing(mixup=1.0), position=3))
    assert (labels.tolist(), counts.tolist()) == ([0, 1, 2], [1, 1, 2])
    vectors = [torch.tensor([1.0, 1.0, -1.0]), torch.tensor([1.0, 0.0, 0.0])]
    labels, counts = counted_labels(ClassificationCollate(multi_label=True)(samples(labels=vectors)))
    assert counts.tolist() == [2, 1, 0]
    labels, counts = counted_labels(ClassificationCollate()(samples()))
    assert (labels.tolist(), counts) == (list(LABELS), None)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_mixup_of_uint8_images_is_rounded_to_the_nearest_level(layout):
    batch = [(image, *labels) for image, *labels in samples(dtype=torch.uint8)]
    if layout is torch.channels_last:
        batch = [(image.permute(1, 2, 0).contiguous().permute(2, 0, 1), *labels) for image, *labels in batch]
    mixing = BatchMixing(mixup=1.0, mixup_alpha=5.0)
    mixed = collate(mixing, batch)
    floats = collate(mixing, [(image.float(), *labels) for image, *labels in batch])
    assert mixed.images.dtype == torch.uint8
    assert mixed.images.is_contiguous(memory_format=layout)
    assert torch.equal(mixed.images, floats.images.round().byte())
    assert not torch.equal(mixed.images, floats.images.byte())  # cut off instead of rounded
    assert torch.equal(mixed.labels, floats.labels)


def test_cutmix_of_uint8_images_copies_pixels():
    batch = samples(dtype=torch.uint8)
    mixed = collate(BatchMixing(cutmix=1.0), batch)
    plain = ClassificationCollate()(batch).images
    assert mixed.images.dtype == torch.uint8
    assert ((mixed.images == plain) | (mixed.images == plain.roll(1, 0))).all()


def test_half_precision_images_stay_in_half_precision():
    assert collate(BatchMixing(mixup=1.0), samples(dtype=torch.float16)).images.dtype == torch.float16


def test_several_labels_are_mixed_and_stay_unlabelled_where_one_image_is():
    vectors = [torch.tensor(row) for row in ([1.0, 0.0, -1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0])]
    mixing = BatchMixing(mixup=1.0, mixup_alpha=5.0)
    labels = collate(mixing, samples(labels=vectors), multi_label=True).labels
    share = float(labels[0, 0])  # of the image itself; the partner lacks the class
    assert 0 < share < 1
    expected = [[share, 1 - share, -1.0], [1.0, share, -1.0], [1 - share, 1.0, 0.0]]
    torch.testing.assert_close(labels, torch.tensor(expected))
    unmixed = collate(BatchMixing(), samples(labels=vectors), multi_label=True).labels
    assert torch.equal(unmixed, torch.stack(vectors))


def test_batch_of_one_image_stays_as_it_is():
    batch = collate(BatchMixing(cutmix=1.0), samples(labels=(1,)))
    assert torch.equal(batch.images[0], samples(labels=(1,))[0][0])
    torch.testing.assert_close(batch.labels, torch.tensor([[0.0, 1.0, 0.0]]))


def test_probability_follows_the_epoch():
    mixing = BatchMixing(mixup=EpochRange([2, 4]), cutmix={"points": {0: 1.0, 2: 0.0, 4: 0.0, 6: 0.5}})
    assert [mixing.chances(epoch) for epoch in (0, 1, 2, 3, 4, 5, 9)] == [
        (0, 1), (0, 0.5), (1, 0), (1, 0), (0, 0), (0, 0.25), (0, 0.5)
    ]  # fmt: skip
    plain = ClassificationCollate()(samples()).images
    assert torch.equal(collate(mixing, epoch=4).images, plain)
    assert not torch.equal(collate(mixing, epoch=2).images, plain)
    assert pickle.loads(pickle.dumps(mixing)) == mixing


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_alpha_follows_the_epoch(name):
    alpha = f"{name}_alpha"
    scheduled = BatchMixing(**{name: 1.0, alpha: {"points": {0: 0.5, 4: 8.5}}})
    for epoch, value in ((0, 0.5), (1, 2.5), (9, 8.5)):
        expected = collate(BatchMixing(**{name: 1.0, alpha: value}), epoch=epoch)
        assert torch.equal(collate(scheduled, epoch=epoch).labels, expected.labels)


@pytest.mark.parametrize("label", [-1, 3])
def test_label_without_a_class_is_refused(label):
    with pytest.raises(ValueError, match=rf"labels from 0 to 2 to mix, got label {label}; leave samples without"):
        collate(BatchMixing(mixup=1.0), samples(labels=(0, label)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mixup": 1.5}, r"mixup=1.5 is not a probability in \[0, 1\]"),
        ({"cutmix": "often"}, "cutmix='often' is not a number; give a number, points or epochs"),
        ({"mixup": {"points": {0: 0.2, 7: 1.2}}}, r"mixup=1.2 is not a probability .* \(epoch 7\)"),
        ({"mixup": 0.6, "cutmix": 0.5}, "add up to more than 1 in epoch 0"),
        ({"mixup": {"epochs": [3, 5]}, "cutmix": 0.1}, "add up to more than 1 in epoch 3"),
        ({"mixup": {"points": {0: 0.0, 4: 1.0}}, "cutmix": {"epochs": [0, 4]}}, "more than 1 in epoch 1"),
        ({"mixup": BatchChoice([0.1, 0.2])}, "depends on the batch"),
        ({"mixup_alpha": 0}, "mixup_alpha=0.0 must be above 0"),
        ({"cutmix_alpha": float("inf")}, "cutmix_alpha=inf must be above 0"),
        ({"mixup_alpha": {"points": {0: 1.0, 8: 0.0}}}, r"mixup_alpha=0.0 must be above 0 \(epoch 8\)"),
        ({"cutmix_alpha": BatchChoice([0.1, 0.2])}, "depends on the batch"),
        ({"cutmix_alpha": "wide"}, "cutmix_alpha='wide' is not a number"),
    ],
)
def test_impossible_settings_are_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        BatchMixing(**arguments)


def test_function_with_an_impossible_value_is_refused_in_its_epoch():
    mixing = BatchMixing(mixup=FunctionSchedule(float))
    with pytest.raises(SettingError, match=r"mixup=2.0 is not a probability"):
        collate(mixing, epoch=2)


def test_number_of_classes_is_required_to_mix_ids_and_has_no_effect_elsewhere():
    with pytest.raises(SettingError, match="num_classes=None must be the number of classes"):
        ClassificationCollate(mixing=BatchMixing(mixup=1.0))
    for arguments in ({}, {"mixing": BatchMixing(mixup=1.0), "multi_label": True}):
        with pytest.raises(SettingError, match="num_classes=3 has an effect only where"):
            ClassificationCollate(num_classes=3, **arguments)
