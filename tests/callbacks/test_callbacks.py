"""The monitor of the classes of training batches."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import Dataset
from torchvision import tv_tensors

from lit_loader import DataLoader
from lit_loader.callbacks import ClassMix, ClassMixMonitor
from lit_loader.collate import ClassificationCollate, DetectionCollate, LandmarkCollate, MultiTaskCollate
from lit_loader.loader.device import moved
from tests.support.lightning_ranks import QUIET
from tests.support.no_sync import META, NoSync

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


class Labelled(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(3, 4, 4), {"labels": torch.tensor([1] * 3 + [2])}


def collate(samples):
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


class OneWeight(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        return self.weight.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(*callbacks, **arguments):
    settings = {"max_epochs": 2, "num_sanity_val_steps": 0, "log_every_n_steps": 1, "callbacks": list(callbacks)}
    loader = DataLoader(Labelled(), batch_size=2, seed=0, collate_fn=collate)
    Trainer(**QUIET | settings | arguments).fit(OneWeight(), loader)


def test_classes_of_training_batches_are_counted():
    monitor = ClassMixMonitor(list("abc"))
    shifted = ClassMixMonitor(list("wxyz"), first_label=0)
    mix = monitor.mixes["class"]
    assert mix.arrived.tolist() == [0, 0, 0]
    fit(monitor)
    fit(shifted)
    assert mix.counts.tolist() == [48, 16, 0]
    assert mix.arrived.tolist() == [0.75, 0.25, 0]
    assert (mix.natural, mix.expected) == (None, None)
    assert shifted.mixes["class"].counts.tolist() == [0, 48, 16, 0]


BOXES = tv_tensors.BoundingBoxes(torch.ones(3, 4), format="XYXY", canvas_size=(4, 4))
TARGET = {
    "boxes": BOXES,
    "labels": torch.tensor([1, 2, 1]),
    "iscrowd": torch.zeros(3),
    "finish": torch.tensor([0, -1, 2]),
    "image_id": 0,
    "is_duplicate": False,
}
IMAGE = torch.zeros(3, 4, 4)


def crop_sample(row):
    points = {"keypoints": torch.zeros(1, 2, 2), "visibility": torch.ones(1, 2), "crop": torch.zeros(1, 4)}
    fields = {name: value[row : row + 1] for name, value in TARGET.items() if isinstance(value, torch.Tensor)}
    return IMAGE, {**TARGET, **fields, **points, "labels": fields["labels"] - 1, "image_id": row}


BATCHES = {
    "detection": DetectionCollate()([(IMAGE, TARGET)]),
    "padded": DetectionCollate(images="pad")([(IMAGE, TARGET)]),
    "several tasks": MultiTaskCollate(keypoints=False, attributes=["finish"])([(IMAGE, TARGET)]),
    "landmarks": LandmarkCollate(attributes=["finish"])([crop_sample(row) for row in range(3)]),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_classes_and_attributes_of_every_kind_of_batch_are_counted(kind):
    by_class = ClassMixMonitor(list("abc"))
    by_finish = ClassMixMonitor(list("xyz"), label="finish")
    for monitor in (by_class, by_finish):
        for _ in range(2):
            monitor.on_train_batch_start(None, None, BATCHES[kind], 0)
    assert by_class.mixes["class"].counts.tolist() == [4, 2, 0]
    assert by_finish.mixes["finish"].counts.tolist() == [2, 0, 2]
    assert by_finish.mixes["finish"].arrived.tolist() == [0.5, 0, 0.5]
    with pytest.raises(ValueError, match="label='colour' should be an attribute"):
        ClassMixMonitor(list("abc"), label="colour").on_train_batch_start(None, None, BATCHES[kind], 0)


@pytest.mark.parametrize("multi_label", [False, True])
def test_batches_of_classification_are_counted(multi_label):
    labels = [torch.tensor([0.0, 1, 1]), torch.tensor([0.0, 0, 1])] if multi_label else [1, 2]
    batch = ClassificationCollate(multi_label=multi_label)([(IMAGE, label, 0, False) for label in labels])
    monitor = ClassMixMonitor(list("abc"))
    monitor.on_train_batch_start(None, None, batch, 0)
    assert monitor.mixes["class"].counts.tolist() == ([0, 1, 2] if multi_label else [0, 1, 1])
    with pytest.raises(TypeError, match="leave label out"):
        ClassMixMonitor(list("abc"), label="finish").on_train_batch_start(None, None, batch, 0)


@pytest.mark.parametrize("kind", [*BATCHES, "labels", "multi-hot"])
def test_batches_on_a_device_are_counted_without_waiting_for_it(kind):
    if kind in BATCHES:
        batch = BATCHES[kind]
    else:
        labels = [torch.tensor([0.0, 1, 1])] if kind == "multi-hot" else [1]
        collate_fn = ClassificationCollate(multi_label=kind == "multi-hot")
        batch = collate_fn([(IMAGE, label, 0, False) for label in labels])
    batch = moved(batch, META)
    monitors = [ClassMixMonitor(list("abc"))]
    monitors += [ClassMixMonitor(list("xyz"), label="finish")] if kind in BATCHES else []
    with NoSync():
        for monitor in 2 * monitors:
            monitor.on_train_batch_start(None, None, batch, 0)


@pytest.mark.parametrize(("label", "message"), [(3, "got class 3"), (-1, "label 0, below first_label=1")])
def test_labels_out_of_range_on_a_device_raise_in_check(label, message):
    mix = ClassMix("class", ("a", "b", "c"))
    mix.add(torch.tensor([0, label, 2, 2]), None)
    mix.add(torch.tensor([2, 9]), torch.tensor([True, False]))
    assert mix.counts.tolist() == [1, 0, 3]
    with pytest.raises(ValueError, match=message):
        mix.check(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_names": ["a"]}, "classes below 1 .* 1 class_names, got class 1"),
        ({"class_names": list("abc"), "first_label": 2}, "label 1, below first_label=2"),
    ],
)
def test_labels_out_of_range_on_the_cpu_raise_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        ClassMixMonitor(**settings).on_train_batch_start(None, None, BATCHES["detection"], 0)


def test_targets_in_columns_are_refused():
    with pytest.raises(TypeError, match="one dict per image"):
        ClassMixMonitor(list("abc")).on_train_batch_start(None, None, ([], {"labels": torch.ones(2, 3)}), 0)


def test_classes_of_two_ranks_are_added_up(tmp_path):
    class Recording(Callback):
        def on_train_end(self, trainer, pl_module):
            counts = mix.mixes["class"].counts.tolist()
            (tmp_path / f"{trainer.global_rank}.txt").write_text(" ".join(map(str, counts)))

    mix = ClassMixMonitor(list("ab"))
    fit(mix, Recording(), max_epochs=1, devices=2, strategy="ddp_fork")
    # Of 8 images, half of them a rank's.
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == ["24 8", "24 8"]
