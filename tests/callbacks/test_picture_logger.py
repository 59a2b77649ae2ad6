"""Pictures of batches, predictions and classes, in the run's folder and in loggers."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from PIL import Image
from torch.utils.data import DataLoader

from lit_loader import (
    ClassificationDataModule,
    DetectionDataModule,
    KeypointDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
)
from lit_loader.callbacks import ClassMixMonitor, PictureLogger, pictures
from tests.support.drawn_set import CLASSES, drawn_source
from tests.support.tiny_trainer import Tiny, trainer_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
]
SCORES = SimpleNamespace(report=lambda: [("test", {"mAP": 0.5}), ("AP@50", dict.fromkeys(CLASSES, 0.5))])


class ImageLogger(Logger):
    """Takes pictures like W&B's logger, and stores their names, steps and sizes."""

    name = version = "images"

    def __init__(self):
        super().__init__()
        self.logged = []

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, params):
        pass

    def log_image(self, key, images, step=None):
        self.logged.append((key, step, [image.size for image in images]))


@pytest.fixture
def datamodule(tmp_path):
    return DetectionDataModule(drawn_source(tmp_path / "set"), batch_size=4)


def test_pictures_are_written_to_the_folder_and_logged_with_their_step(datamodule, tmp_path):
    logger = ImageLogger()
    model = Tiny(val_scores=SCORES, test_scores=SCORES)
    trainer = trainer_of(tmp_path, PictureLogger(), ClassMixMonitor(), logger=logger, max_epochs=2)
    trainer.fit(model, datamodule=datamodule)
    trainer.test(model, datamodule=datamodule, verbose=False)
    names = ["train_batch", "predictions", "predictions", "class_report", "class_report"]
    assert [(name, step) for name, step, _ in logger.logged] == list(zip(names, [0, 6, 12, 12, 12], strict=True))
    files = {path.stem: Image.open(io.BytesIO(path.read_bytes())).size for path in (tmp_path / "pictures").iterdir()}
    assert files == {name: sizes[0] for name, _, sizes in logger.logged}


@pytest.mark.parametrize("hflip", [0.5, 0.0])
def test_mirrored_points_are_drawn_at_the_start_of_a_training_that_flips(hflip, tmp_path):
    source = drawn_source(tmp_path / "set")
    datamodule = KeypointDataModule(source, train_transforms={"hflip": hflip})
    logger = ImageLogger()
    trainer = SimpleNamespace(
        datamodule=datamodule, default_root_dir=tmp_path, is_global_zero=True, loggers=[logger], global_step=0
    )
    pictures = PictureLogger(max_images=4)
    pictures.setup(trainer, Tiny(), "fit")
    pictures.on_train_start(trainer, Tiny())
    assert [name for name, *_ in logger.logged] == (["mirrored"] if hflip else [])
    assert (tmp_path / "pictures" / "mirrored.png").exists() == bool(hflip)


def test_predictions_are_drawn_every_n_epochs_into_the_given_folder(datamodule, tmp_path):
    logger = ImageLogger()
    folder = tmp_path / "elsewhere"
    pictures = PictureLogger(every_n_epochs=2, folder=folder)
    trainer_of(tmp_path, pictures, logger=logger, max_epochs=5, num_sanity_val_steps=1).fit(
        Tiny(), datamodule=datamodule
    )
    assert [step for name, step, _ in logger.logged if name == "predictions"] == [6, 18, 30]
    assert sorted(path.name for path in folder.iterdir()) == ["predictions.png", "train_batch.png"]
    assert not (tmp_path / "pictures").exists()


def test_pictures_show_the_batch_of_the_run_and_predictions_of_the_validated_model(datamodule, tmp_path, monkeypatch):
    figure = datamodule.plot_batch("val")
    draw = Mock(return_value=figure)
    monkeypatch.setattr(pictures, "draw_found", draw)
    predicted_batches = []

    def find(batch):
        predicted_batches.append(batch)
        assert (module.training, torch.is_grad_enabled()) == (False, False)
        return "predictions"

    module = Tiny(find)
    trainer_of(tmp_path, PictureLogger(max_images=3, min_score=0.25)).fit(module, datamodule=datamodule)
    (batch,) = predicted_batches
    settings = {"min_score": 0.25, "max_images": 3, "title": "predictions, epoch 0"}
    draw.assert_called_once_with(datamodule, batch, "predictions", **settings)


class Generators(Callback):
    """Draws random numbers after each batch, which pictures must not change."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        pl_module.seen.append(torch.rand(3).tolist())


def trained(folder, datamodule, *callbacks):
    seed_everything(1, verbose=False)
    module = Tiny(lambda batch: [torch.rand(9)] and Tiny.predict_step(Tiny(), batch, 0))
    trainer_of(folder, *callbacks, Generators(), max_epochs=2).fit(module, datamodule=datamodule)
    return module


def test_pictures_change_neither_batches_nor_random_draws_nor_a_resumed_run(tmp_path):
    def data():
        return DetectionDataModule(drawn_source(tmp_path / "set"), batch_size=4, seed=3)

    plain = trained(tmp_path, data())
    drawn = trained(tmp_path, data(), PictureLogger())
    assert drawn.seen == plain.seen
    assert torch.equal(drawn.weight, plain.weight)

    class Stop(Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 8:
                trainer.save_checkpoint(tmp_path / "mid.ckpt")
                trainer.should_stop = True

    trained(tmp_path, data(), PictureLogger(), Stop())
    seed_everything(5, verbose=False)
    resumed = Tiny()
    trainer = trainer_of(tmp_path, PictureLogger(), max_epochs=2)
    trainer.fit(resumed, datamodule=data(), ckpt_path=tmp_path / "mid.ckpt", weights_only=True)
    totals = [entry[0] for entry in plain.seen if len(entry) == 2]  # without the entries of `Generators`
    assert [total for total, _ in resumed.seen] == totals[8:]
    assert torch.equal(resumed.weight, plain.weight)


def moved_points(batch):
    return {"keypoints": batch.keypoints + 1, "scores": torch.ones(batch.keypoints.shape[:2])}


@pytest.mark.parametrize(
    ("kind", "find", "settings"),
    [
        (LandmarkDataModule, moved_points, {"train_transforms": {"size": 32}}),
        (
            ClassificationDataModule,
            lambda batch: torch.eye(3)[[0] * len(batch.labels)],
            {"sample_unit": "object", "train_transforms": {"size": 32}},
        ),
        (MultiTaskDataModule, None, {}),
    ],
)
def test_batches_of_every_task_are_drawn(tmp_path, kind, find, settings):
    datamodule = kind(drawn_source(tmp_path / "set"), batch_size=4, **settings)
    trainer_of(tmp_path, PictureLogger(), limit_train_batches=1).fit(Tiny(find), datamodule=datamodule)
    names = {"train_batch", "predictions"} | ({"mirrored"} if datamodule.keypoints else set())
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == names


def test_tensorboard_gets_the_pictures(datamodule, tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="", version="tb")
    trainer = trainer_of(tmp_path, PictureLogger(), ClassMixMonitor(), logger=logger)
    trainer.fit(Tiny(val_scores=SCORES), datamodule=datamodule)
    events = EventAccumulator(str(tmp_path / "tb"), size_guidance={"images": 0}).Reload()
    assert sorted(events.Tags()["images"]) == ["class_report", "predictions", "train_batch"]
    assert events.Images("predictions")[0].step == 6
    assert "data/mix/common" in events.Tags()["scalars"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.soak
def test_wandb_gets_the_pictures(datamodule, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")
    for name, value in (("WANDB_SILENT", "true"), ("WANDB_DIR", tmp_path), ("WANDB_MODE", "offline")):
        monkeypatch.setenv(name, str(value))
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="pictures")
    try:
        trainer = trainer_of(tmp_path, PictureLogger(), ClassMixMonitor(), logger=logger)
        trainer.fit(Tiny(val_scores=SCORES), datamodule=datamodule)
    finally:
        logger.experiment.finish()
        wandb.teardown()
    names = [path.name for path in tmp_path.glob("wandb/offline-run-*/files/media/images/*.png")]
    assert [name.rsplit("_", 2)[0] for name in sorted(names)] == ["class_report", "predictions", "train_batch"]


def test_csv_logger_gets_no_pictures_and_missing_matplotlib_raises_before_training(datamodule, tmp_path, monkeypatch):
    trainer_of(tmp_path, PictureLogger(), logger=CSVLogger(tmp_path)).fit(Tiny(), datamodule=datamodule)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    module = Tiny()
    with pytest.raises(ImportError, match=r"pip install 'lit-loader\[plot\]'"):
        trainer_of(tmp_path, PictureLogger()).fit(module, datamodule=datamodule)
    assert not module.seen


def test_unsuitable_trainers_and_arguments_are_refused_at_the_start(tmp_path):
    with pytest.raises(ValueError, match=r"got no data module; .*leave the callback out"):
        trainer_of(tmp_path, PictureLogger()).fit(Tiny(), DataLoader([0]), DataLoader([0]))
    for settings in ({"every_n_epochs": 0}, {"max_images": 0}, {"min_score": 2.0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            PictureLogger(**settings)


def test_only_rank_0_draws(datamodule, tmp_path):
    trainer = trainer_of(tmp_path, CountingLogger(tmp_path), ClassMixMonitor(), devices=2, strategy="ddp_fork")
    trainer.fit(Tiny(val_scores=SCORES), datamodule=datamodule)
    assert [path.name for path in tmp_path.glob("rank-*")] == ["rank-0"]
    assert (tmp_path / "rank-0").read_text() == "train_batch predictions class_report "


class CountingLogger(PictureLogger):
    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def _publish(self, trainer, name, figure):
        super()._publish(trainer, name, figure)
        with (self.notes / f"rank-{trainer.global_rank}").open("a") as file:
            file.write(f"{name} ")
