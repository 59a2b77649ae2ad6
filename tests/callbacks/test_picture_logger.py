"""Pictures of batches, predictions and classes, in the run's folder and in loggers."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from PIL import Image
from torch.utils.data import DataLoader

from lit_loader import ClassificationDataModule, DetectionDataModule, LandmarkDataModule, MultiTaskDataModule
from lit_loader.callbacks import ClassMixMonitor, PictureLogger, pictures
from tests.support.drawn_set import CLASSES, drawn_source
from tests.support.tiny_trainer import Tiny, trainer_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
]
SCORES = SimpleNamespace(report=lambda: [("test", {"mAP": 0.5}), ("AP@50", dict.fromkeys(CLASSES, 0.5))])


class Told(Logger):
    """Takes pictures as W&B's logger does, and keeps their names, sizes and steps."""

    name = version = "told"

    def __init__(self):
        super().__init__()
        self.given = []

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, params):
        pass

    def log_image(self, key, images, step=None):
        self.given.append((key, step, [image.size for image in images]))


@pytest.fixture
def datamodule(tmp_path):
    return DetectionDataModule(drawn_source(tmp_path / "set"), batch_size=4)


def test_a_run_leaves_its_pictures_and_gives_them_to_loggers_with_their_step(datamodule, tmp_path):
    told = Told()
    model = Tiny(val_scores=SCORES, test_scores=SCORES)
    trainer = trainer_of(tmp_path, PictureLogger(), ClassMixMonitor(), logger=told, max_epochs=2)
    trainer.fit(model, datamodule=datamodule)
    trainer.test(model, datamodule=datamodule, verbose=False)
    names = [(name, step) for name, step, _ in told.given]
    assert names == [
        ("train_batch", 0),
        ("predictions", 6),
        ("predictions", 12),
        ("class_report", 12),
        ("class_report", 12),
    ]
    files = {path.stem: Image.open(io.BytesIO(path.read_bytes())).size for path in (tmp_path / "pictures").iterdir()}
    assert files == {name: sizes[0] for name, _, sizes in told.given}


def test_predictions_are_drawn_every_few_epochs_into_the_folder_given(datamodule, tmp_path):
    told = Told()
    folder = tmp_path / "elsewhere"
    pictures = PictureLogger(every_n_epochs=2, folder=folder)
    trainer_of(tmp_path, pictures, logger=told, max_epochs=5, num_sanity_val_steps=1).fit(Tiny(), datamodule=datamodule)
    assert [step for name, step, _ in told.given if name == "predictions"] == [6, 18, 30]
    assert sorted(path.name for path in folder.iterdir()) == ["predictions.png", "train_batch.png"]
    assert not (tmp_path / "pictures").exists()


def test_pictures_show_the_batch_of_the_run_and_predictions_of_the_validated_model(datamodule, tmp_path, monkeypatch):
    drawn = []
    seen = []
    monkeypatch.setattr(
        pictures, "draw_found", lambda _, batch, found, **how: drawn.append((batch, found, how)) or figure
    )
    figure = datamodule.plot_batch("val")

    def find(batch):
        seen.append((batch, module.training, torch.is_grad_enabled()))
        return "found"

    module = Tiny(find)
    trainer_of(tmp_path, PictureLogger(max_images=3, min_score=0.25)).fit(module, datamodule=datamodule)
    assert [(training, has_grad) for _, training, has_grad in seen] == [(False, False)]
    ((batch, found, how),) = drawn
    assert batch is seen[0][0]
    assert found == "found"
    assert how == {"min_score": 0.25, "max_images": 3, "title": "predictions, epoch 0"}


class Generators(Callback):
    """Draws where pictures are drawn, from torch's generator."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        pl_module.seen.append(torch.rand(3).tolist())


def trained(folder, datamodule, *callbacks):
    seed_everything(1, verbose=False)
    module = Tiny(lambda batch: [torch.rand(9)] and Tiny.predict_step(Tiny(), batch, 0))
    trainer_of(folder, *callbacks, Generators(), max_epochs=2).fit(module, datamodule=datamodule)
    return module


def test_batches_draws_weights_and_a_resumed_run_are_the_same_with_pictures(tmp_path):
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
    totals = [each[0] for each in plain.seen if len(each) == 2]
    assert [total for total, _ in resumed.seen] == totals[8:]
    assert torch.equal(resumed.weight, plain.weight)


def of_points(batch):
    return {"keypoints": batch.keypoints + 1, "scores": torch.ones(batch.keypoints.shape[:2])}


@pytest.mark.parametrize(
    ("kind", "find", "settings"),
    [
        (LandmarkDataModule, of_points, {"train_transforms": {"size": 32}}),
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
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == {"train_batch", "predictions"}


def test_tensorboard_gets_the_pictures(datamodule, tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="", version="tb")
    trainer = trainer_of(tmp_path, PictureLogger(), ClassMixMonitor(), logger=logger)
    trainer.fit(Tiny(val_scores=SCORES), datamodule=datamodule)
    found = EventAccumulator(str(tmp_path / "tb"), size_guidance={"images": 0}).Reload()
    assert sorted(found.Tags()["images"]) == ["class_report", "predictions", "train_batch"]
    assert found.Images("predictions")[0].step == 6
    assert "data/mix/common" in found.Tags()["scalars"]


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
    wanted = ["class_report", "predictions", "train_batch"]
    assert [name.rsplit("_", 2)[0] for name in sorted(names)] == wanted


def test_a_csv_logger_gets_none_and_a_missing_matplotlib_is_named_before_training(datamodule, tmp_path, monkeypatch):
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
    for given in ({"every_n_epochs": 0}, {"max_images": 0}, {"min_score": 2.0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            PictureLogger(**given)


def test_only_rank_0_draws(datamodule, tmp_path):
    trainer = trainer_of(tmp_path, Counted(tmp_path), ClassMixMonitor(), devices=2, strategy="ddp_fork")
    trainer.fit(Tiny(val_scores=SCORES), datamodule=datamodule)
    assert [path.name for path in tmp_path.glob("rank-*")] == ["rank-0"]
    assert (tmp_path / "rank-0").read_text() == "train_batch predictions class_report "


class Counted(PictureLogger):
    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def _publish(self, trainer, name, figure):
        super()._publish(trainer, name, figure)
        with (self.notes / f"rank-{trainer.global_rank}").open("a") as file:
            file.write(f"{name} ")
