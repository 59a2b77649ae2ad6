"""Transforms that a user adds to a preset, in data modules: stages, draws, fast decoding, and the list in a summary."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.datamodules import (
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    WorkerSettings,
)
from lit_loader.errors import SettingError
from lit_loader.images import decode_image, open_image
from lit_loader.transforms import (
    AlbumentationsTransform,
    classification_transforms,
    detection_transforms,
    landmark_transforms,
)
from tests.support.drawn_set import drawn_source
from tests.support.photo_like import jpeg, photo_like
from tests.support.read_both_ways import HEIGHT, WIDTH, assert_within_bound, target
from tests.support.seeded import seeded
from tests.support.toys import plain

BILINEAR = v2.InterpolationMode.BILINEAR
MOVING = [
    v2.RandomChoice([v2.RandomAffine(20, (0.1, 0.1), (0.9, 1.1), 5), v2.RandomPerspective(0.3, p=1)]),
    v2.RandomApply([v2.ElasticTransform(20.0)], p=0.5),
    v2.RandomOrder([v2.ColorJitter(0.3, 0.3), v2.GaussianBlur(3), v2.RandomHorizontalFlip()]),
]
AUTO_AUGMENT = [v2.RandAugment(), v2.TrivialAugmentWide(), v2.RandomErasing(p=0.5)]
TASKS = {
    "detection": (DetectionDataModule, {"extra_before": MOVING, "extra_after": MOVING}),
    "landmarks": (LandmarkDataModule, {"size": 24, "extra_before": MOVING, "extra_after": MOVING}),
    "landmarks of images": (LandmarkDataModule, {"extra_after": MOVING}),
    "classification": (ClassificationDataModule, {"size": 24, "extra_before": MOVING, "extra_after": AUTO_AUGMENT}),
    "classification of crops": (ClassificationDataModule, {"size": 24, "extra_after": AUTO_AUGMENT}),
    "multi-task": (MultiTaskDataModule, {"extra_before": MOVING}),
}
SETTINGS = {
    "landmarks of images": {"sample_unit": "image"},
    "classification": {"multi_label": True},
    "classification of crops": {"sample_unit": "object"},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return drawn_source(tmp_path_factory.mktemp("drawn"))


def make(source, task, **settings):
    kind, transforms = TASKS[task]
    return kind(source, batch_size=4, seed=3, train_transforms=transforms, **SETTINGS.get(task, {}), **settings)


@pytest.fixture(scope="module")
def inline(source):
    """Return two epochs of a task without workers, made once."""
    return cache(lambda task: epochs(make(source, task)))


def epochs(datamodule, count=2):
    with datamodule.train_dataloader() as loader:
        return [plain(batch) for _ in range(count) for batch in loader]


BACKENDS = [
    *((task, {"multiprocessing_context": "fork"}) for task in TASKS),
    *((task, {"worker_method": "thread"}) for task in TASKS),
    # Starting processes by spawn takes seconds, and all tasks unpickle the same transforms.
    ("multi-task", {"multiprocessing_context": "spawn"}),
]


@pytest.mark.parametrize(("task", "workers"), BACKENDS, ids=str)
def test_bits_are_the_same_in_every_backend(source, inline, task, workers):
    expected = inline(task)
    assert expected[: len(expected) // 2] != expected[len(expected) // 2 :]
    # One spawned process is enough to unpickle the transforms; it takes seconds to start.
    num_workers = 1 if workers.get("multiprocessing_context") == "spawn" else 2
    assert epochs(make(source, task, workers=WorkerSettings(num_workers=num_workers, **workers))) == expected


def test_an_epoch_that_is_resumed_draws_the_same(source, inline):
    expected = inline("multi-task")
    with make(source, "multi-task").train_dataloader() as loader:
        iterator = iter(loader)
        first_batches = [plain(next(iterator)) for _ in range(2)]
        state = loader.state_dict()
    workers = WorkerSettings(num_workers=2, worker_method="thread")
    with make(source, "multi-task", workers=workers).train_dataloader() as loader:
        loader.load_state_dict(state)
        assert first_batches + [plain(batch) for batch in loader] == expected[: len(expected) // 2]


def record_in(stages, name):
    def record(image, target):
        stages.append(name)
        return image, target

    return record


def test_each_stage_has_only_its_own_extra_transforms(source):
    calls = []
    datamodule = DetectionDataModule(
        source,
        batch_size=1,
        train_transforms={"size": 32, "extra_before": [record_in(calls, "train")], "extra_after": [v2.Pad(1)]},
        val_transforms={"extra_after": [record_in(calls, "val")]},
    )
    expected_sides = {"train": 34, "val": 32, "test": 32}
    for stage, side in expected_sides.items():
        images, _ = datamodule.first_batch(stage)
        assert min(images[0].shape[1:]) == side, stage
    assert calls[:1] + calls[-1:] == ["train", "val"]


@pytest.mark.parametrize("kind", [DetectionDataModule, LandmarkDataModule, MultiTaskDataModule])
@pytest.mark.parametrize("stage", ["train", "val", "predict"])
def test_auto_augment_is_refused_at_construction_where_objects_count(source, kind, stage):
    with pytest.raises(SettingError, match=r"extra_after\[0\].*RandAugment.*would move pixels without .*RandomAffine"):
        kind(source, **{f"{stage}_transforms": {"extra_after": [v2.RandAugment()]}})


def test_a_flip_uses_the_mirror_pairs_of_the_table(source):
    flip = {"extra_after": [v2.RandomHorizontalFlip(p=1)], "hflip": 0.0, "photometric": 0.0, "size": 32}
    plain_batch = LandmarkDataModule(source, batch_size=4, test_transforms={"size": 32}).first_batch("test")
    flipped = LandmarkDataModule(source, batch_size=4, test_transforms=flip).first_batch("test")
    torch.testing.assert_close(flipped.images, plain_batch.images.flip(-1))
    (table,) = LandmarkDataModule(source).tables("test")
    order = list(range(len(table.keypoint_names)))
    for first, second in table.flip_pairs:
        order[first] = second
        order[second] = first
    assert order != sorted(order)
    mirrored = plain_batch.keypoints[:, order] * torch.tensor([-1, 1]) + torch.tensor([32, 0])
    mask = flipped.mask
    assert torch.equal(mask, plain_batch.mask[:, order])
    torch.testing.assert_close(flipped.keypoints[mask], mirrored[mask])


def test_a_pipeline_of_albumentations_gets_the_mirror_pairs_and_fields_of_the_data(source, monkeypatch):
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks the network for its newest version
    albumentations = pytest.importorskip("albumentations")
    params = {
        "bbox_params": albumentations.BboxParams("pascal_voc", label_fields=["rows"]),
        "keypoint_params": albumentations.KeypointParams("xy", remove_invisible=False),
    }
    flip = AlbumentationsTransform(albumentations.Compose([albumentations.HorizontalFlip(p=1)], **params))
    batches = {}
    for name, extra in (("pipeline", flip), ("flip", v2.RandomHorizontalFlip(p=1))):
        datamodule = MultiTaskDataModule(source, batch_size=4, test_transforms={"extra_after": [extra]})
        batches[name] = datamodule.first_batch("test")
    pipeline = batches["pipeline"]
    expected = batches["flip"]
    torch.testing.assert_close(pipeline.images, expected.images)
    torch.testing.assert_close(pipeline.boxes, expected.boxes)
    assert torch.equal(pipeline.keypoint_mask, expected.keypoint_mask)
    mask = expected.keypoint_mask
    torch.testing.assert_close(pipeline.keypoints[mask], expected.keypoints[mask])
    assert pipeline.attributes.keys() == expected.attributes.keys() == {"finish"}
    assert torch.equal(pipeline.attributes["finish"], expected.attributes["finish"])


KEYWORDS = {"size": 50, "flip_pairs": [], "to_float": False}
PRESETS = {
    "detection": detection_transforms(True, extra_before=MOVING, **KEYWORDS),
    "detection, after": detection_transforms(True, extra_after=MOVING, **KEYWORDS),
    "landmarks": landmark_transforms(True, extra_after=[v2.ColorJitter(0.1)], **KEYWORDS),
    "classification": classification_transforms(True, extra_after=[v2.RandomErasing()], **KEYWORDS),
}


@pytest.mark.parametrize("name", PRESETS)
def test_fast_decoding_draws_the_same_and_stays_within_its_bound(tmp_path, name):
    path = tmp_path / "0.jpg"
    path.write_bytes(jpeg(photo_like(HEIGHT, WIDTH, seed=1)))
    preset = PRESETS[name]
    decoded = tv_tensors.Image(decode_image(path))
    for seed in range(6):
        exact, exact_target = seeded(seed, preset, decoded, target(1))
        fast, fast_target = seeded(seed, preset.read, open_image(path), target(1))
        for field, value in exact_target.items():
            assert torch.equal(torch.as_tensor(fast_target[field]), torch.as_tensor(value)), field
        difference = (exact.double() - fast.double()).abs()
        if name == "detection":
            # The first transform gets every pixel.
            assert difference.max() == 0
        else:
            assert_within_bound(difference, name)


def test_a_summary_lists_the_transforms_of_each_stage(source):
    settings = {"size": 32, "extra_after": [v2.RandomAffine(5)]}
    text = DetectionDataModule(source, train_transforms=settings).summary()
    assert text.endswith(
        """
train transforms:
  RandomHorizontalFlip(p=0.5)
  Resize(size=[32])
  RandomAffine(degrees=[-5, 5])
  SanitizeObjects()
  ToFloat32(planes=False)
val, test, predict transforms:
  Resize(size=[32])
  SanitizeObjects()
  ToFloat32(planes=False)"""
    )


def test_a_summary_lists_callables_and_stages_that_differ(source):
    resize = v2.Compose([v2.Resize((24, 24)), v2.ToDtype(torch.float32, scale=True)])
    datamodule = ClassificationDataModule(
        source, multi_label=True, train_transforms=resize, val_transforms=resize, predict_transforms=record_in([], "")
    )
    lines = datamodule.summary().split("train, val transforms:\n")[1].splitlines()
    assert lines[:2] == ["  Resize(size=[24, 24])", "  ToDtype(scale=True)"]
    assert lines[2:5] == ["test transforms:", "  CropToObjects(size=[224, 224], margin=0, around='image', fit='crop', "
                          "scale=[0.875, 0.875])", "  ToFloat32()"]  # fmt: skip
    assert lines[5:] == ["predict transforms:", "  record_in.<locals>.record"]
    assert max(map(len, lines)) <= 100
