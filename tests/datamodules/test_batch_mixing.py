"""The argument `mixing` of the classification data module: mixed training batches, records, pictures, refusals."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from lit_loader import BatchMixing, ClassificationDataModule, DetectionDataModule, EpochRange, FunctionSchedule
from lit_loader.callbacks import ClassMixMonitor
from lit_loader.datamodules import ClassBalancedSamplerConfig, draw_found, label_texts
from lit_loader.errors import SettingError
from tests.support.drawn_set import CLASSES, DrawnSource, draw_set, drawn_source
from tests.support.tiny_trainer import Tiny, trainer_of
from tests.support.toy_mixes import Stacked

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
]
TRANSFORMS = {"size": 16}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("single")
    return DrawnSource(
        train=draw_set(root, num_images=60, objects=1), val=draw_set(root / "val", num_images=8, objects=1, seed=1)
    )


def module(source, mixing, **settings):
    return ClassificationDataModule(
        source, **{"mixing": mixing, "batch_size": 8, "seed": 3, "train_transforms": TRANSFORMS, **settings}
    )


@pytest.mark.parametrize("multi_label", [False, True])
def test_only_training_batches_are_mixed(source, multi_label):
    datamodule = module(source, BatchMixing(mixup=1.0, mixup_alpha=5.0), multi_label=multi_label)
    labels = datamodule.first_batch("train").labels
    assert (labels.shape, labels.dtype) == ((8, len(CLASSES)), torch.float32)
    assert ((labels > 0) & (labels < 1)).any()
    plain = module(source, None, multi_label=multi_label)
    assert torch.equal(datamodule.first_batch("val").labels, plain.first_batch("val").labels)
    assert plain.first_batch("train").labels.shape == ((8, len(CLASSES)) if multi_label else (8,))


def test_object_crops_and_attribute_values_are_mixed(tmp_path):
    datamodule = module(drawn_source(tmp_path), {"cutmix": 1.0}, sample_unit="object", label_attribute="finish")
    batch = datamodule.first_batch("train")
    assert batch.labels.shape == (8, len(datamodule.class_names))
    torch.testing.assert_close(batch.labels.sum(dim=1), torch.ones(8))


def test_argument_is_an_object_its_fields_or_one_object_by_name(source):
    expected = BatchMixing(cutmix=0.5)
    for mixing in (expected, {"cutmix": 0.5}, {"cutmix": expected}, {"cutmix": expected, "batch_mixup": None}):
        assert module(source, mixing).batch_mixing == expected
    for mixing in (None, {}, {"cutmix": None}):
        assert module(source, mixing).batch_mixing is None


@pytest.mark.parametrize(
    ("mixing", "message"),
    [
        (Stacked(), r"mixing=\['Stacked'\] is for images with objects.*mixing=cutmix or mixing=batch_mixup"),
        ([Stacked()], r"mixing=\['Stacked'\] is for images with objects"),
        ({"mosaic": Stacked()}, r"mixing=\['Stacked'\] is for images with objects"),
        ("cutmix", r"mixing='cutmix' must be a BatchMixing; choose BatchMixing\(cutmix=1.0\)"),
        ({"a": BatchMixing(mixup=1.0), "b": BatchMixing(cutmix=1.0)}, r"\['a', 'b'\] has several entries.*choose one"),
        ({"cutmx": 1.0}, r"has \['cutmx'\]; the fields of BatchMixing are \['mixup', 'cutmix', 'mixup_alpha'"),
        ({"cutmix": 1.5}, r"cutmix=1.5 is not a probability"),
    ],
)
def test_other_mixes_are_refused_with_the_remedy(source, mixing, message):
    with pytest.raises(SettingError, match=message):
        module(source, mixing)


def test_detection_refuses_the_mixing_of_batches_with_the_remedy(source):
    mixing = BatchMixing(cutmix=1.0)
    for argument in (mixing, [mixing], {"cutmix": mixing}):
        with pytest.raises(SettingError, match=r"mixing='BatchMixing' .* mixing=mosaic, mixup or copy_paste"):
            DetectionDataModule(source, mixing=argument)


def test_checkpoint_restores_mixing_and_its_schedules_unless_one_is_a_function(source):
    mixing = BatchMixing(mixup={"points": {0: 0.5, 4: 0}}, cutmix=EpochRange([0, 3], 0.2))
    hparams = dict(module(source, mixing).hparams)
    assert module(source, hparams["mixing"]).batch_mixing == mixing
    assert module(source, None).hparams["mixing"] is None
    assert "mixing" not in module(source, BatchMixing(mixup=FunctionSchedule(abs))).hparams


def test_summary_and_checkpoint_name_the_mixing(source):
    datamodule = module(source, BatchMixing(cutmix=EpochRange([0, 3], 0.2)))
    line = "BatchMixing(cutmix=0.2 in epochs 0 to 2, else 0.0)"
    assert f"train mixing:\n  {line}" in datamodule.summary()
    assert datamodule.schedules() == {"mixing[0] BatchMixing.cutmix": EpochRange([0, 3], 0.2)}
    assert "BatchMixing.cutmix" in datamodule.summary()
    datamodule.setup("fit")
    sets = datamodule.state_dict()["data"]["sets"]
    assert sets["train"]["texts"]["mixing"] == line
    assert "mixing" not in sets["val"]["texts"]
    assert "mixing" not in module(source, None).summary()


class Labels(Callback):
    """Collects the labels of every training batch by epoch."""

    def __init__(self):
        self.labels = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module, batch, batch_idx):
        self.labels.setdefault(trainer.current_epoch, []).append(batch.labels)


def fitted(datamodule, folder, *callbacks, ckpt_path=None, **settings):
    collected = Labels()
    trainer = trainer_of(folder, collected, *callbacks, limit_val_batches=0, **settings)
    trainer.fit(Tiny(), datamodule=datamodule, ckpt_path=ckpt_path, weights_only=False)
    return trainer, collected.labels


def test_mixing_ends_with_its_schedule_in_a_resumed_run_with_persistent_workers(source, tmp_path):
    """ultralytics#25762: a resumed run must not go on mixing after the epoch in which it ends."""
    mixing = BatchMixing(mixup=EpochRange([0, 2]), mixup_alpha=5.0)
    workers = {"num_workers": 2, "workers": {"persistent_workers": True}}
    _, expected = fitted(module(source, mixing), tmp_path, max_epochs=4)
    trainer, _ = fitted(module(source, mixing, **workers), tmp_path, max_steps=11, max_epochs=4)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    _, resumed = fitted(module(source, mixing, **workers), tmp_path, max_epochs=4, ckpt_path=tmp_path / "run.ckpt")
    assert [len(labels) for labels in resumed.values()] == [5, 8, 8]  # from the fourth batch of the second epoch on
    for epoch, labels in resumed.items():
        everything = torch.cat(expected[epoch][-len(labels) :])
        assert torch.equal(torch.cat(labels), everything)
        assert bool(((everything > 0) & (everything < 1)).any()) == (epoch < 2)


@pytest.mark.parametrize("mixing", [BatchMixing(mixup=1.0), BatchMixing(cutmix=0.7, mixup=0.3)], ids=str)
def test_balanced_class_shares_arrive_as_expected_in_mixed_batches(source, tmp_path, mixing):
    sampler = ClassBalancedSamplerConfig(num_samples=96)
    shares = {}
    for name, setting in (("mixed", mixing), ("plain", None)):
        monitor = ClassMixMonitor()
        fitted(module(source, setting, train_sampler=sampler), tmp_path, monitor, max_epochs=3)
        mix = monitor.mixes["class"]
        assert mix.counts.sum() == 3 * 96
        shares[name] = mix.counts.tolist()
        # One standard deviation of a share of 288 draws is below 3 %.
        assert abs(mix.arrived - mix.expected).max() < 0.03
        assert abs(mix.expected - mix.natural).max() > 0.1
    assert shares["mixed"] == shares["plain"]


def test_pictures_show_the_proportions_of_classes(source, tmp_path):
    labels = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.04, 0.96], [0.0, 1.0, 0.0], [0.001, 0.999, 0.0], [0.0, 0.0, 0.0]])
    assert label_texts(labels, CLASSES) == ["common 0.7, rare 0.3", "pointless 0.96, rare 0.04", "rare", "rare", "none"]
    datamodule = module(source, BatchMixing(mixup=1.0, mixup_alpha=5.0))
    figure = datamodule.plot_batch(path=tmp_path / "batch.png")
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == label_texts(datamodule.first_batch("train").labels, CLASSES)
    assert any(" 0." in title for title in titles)


def test_picture_of_predictions_shows_the_likeliest_class_of_a_mixed_image(source):
    datamodule = module(source, BatchMixing(mixup=1.0, mixup_alpha=5.0))
    batch = datamodule.first_batch("train")
    probabilities = torch.tensor([0.3, 0.4, 0.3]).expand(8, 3)
    titles = [axis.get_title() for axis in draw_found(datamodule, batch, probabilities).axes]
    assert all(title.startswith("rare") for title in titles)
