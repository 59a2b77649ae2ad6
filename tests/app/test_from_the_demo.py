"""The documented commands for a user's data, model, logger, sweep and checkpoint run unchanged."""

from __future__ import annotations

import json

import pytest

from tests.support import documents
from tests.support.documents import PAGES, blocks
from tests.support.made_sets import make_coco, split_in_two
from tests.support.small_app import run_app
from tests.support.text_sets import write_image

QUICK = [
    *("trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.max_epochs=1", "trainer.limit_train_batches=2"),
    *("trainer.limit_val_batches=1", "trainer.limit_test_batches=1", "trainer.log_every_n_steps=1"),
    *("trainer.limit_predict_batches=1", "trainer.enable_progress_bar=false"),
    *("~callbacks.pictures", "~callbacks.curves", "~callbacks.model_summary", "+trainer.enable_model_summary=false"),
    *("~callbacks.rich_progress", "workers.num_workers=0", "datamodule.batch_size=4"),
]
SHAPES = [
    *("dataset.num_images={train: 24, val: 4, test: 4}", "dataset.image_size=48", "dataset.class_shares=[0.6,0.3,0.1]"),
    *("model.model.channels=8", "model.model.head_channels=32"),
]
BIG = ["dataset.progress=false", "model.weights=null", "model.model.min_size=64", "model.model.max_size=96"]


def commands(page, heading=""):
    """Split each command of a page, or under one of its headings, into words without the program."""
    text = PAGES[page]
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return documents.commands(text, "lit-loader")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    def run(words, *more):
        result = run_app(tmp_path, *words, *QUICK, *more)
        assert result.code == 0, result.out + result.err
        return result.out

    return run


@pytest.fixture
def coco(tmp_path):
    """A set in COCO's layout at the path in the documentation."""
    root = tmp_path / "path" / "to" / "coco"
    root.mkdir(parents=True)
    make_coco(root, split_in_two(tmp_path))
    return root


def in_folder(words, folder):
    return [word.replace("logs/train/runs/DATE_TIME", str(folder)) for word in words]


def run_folder(tmp_path):
    (folder,) = (tmp_path / "logs" / "train" / "runs").iterdir()
    return folder


@pytest.mark.soak
def test_coco_with_a_pretrained_detector(run, coco):
    first, _, _ = commands("training/first-run", "A pretrained detector")
    assert "tested: checkpoint" in run(first, *BIG)


@pytest.mark.soak
def test_own_set_in_the_format_of_coco(run, coco):
    _, _, second = commands("training/first-run", "A pretrained detector")
    mine = coco.parent / "mine"
    mine.mkdir()
    for name in ("train", "val"):
        (mine / f"{name}.json").write_bytes((coco / f"annotations/instances_{name}2017.json").read_bytes())
        for path in (coco / f"{name}2017").iterdir():
            (mine / "images").mkdir(exist_ok=True)
            path.rename(mine / "images" / path.name)
    printed = run(second, *BIG)
    assert "RepeatFactorSampler" in printed
    assert "tested: checkpoint" in printed


def test_own_model(run, coco, tmp_path):
    python, _ = blocks(PAGES["extending/model"], "python")
    (yaml,) = blocks(PAGES["extending/model"], "yaml")
    (tmp_path / "my_models.py").write_text(python)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(yaml)
    (words,) = commands("extending/model")
    assert "tested: checkpoint" in run(words, "model.model.min_size=64", "dataset.progress=false")


def test_tensorboard_with_pictures(run, tmp_path):
    pytest.importorskip("tensorboard")
    words, *_ = commands("training/callbacks")
    run(words, *SHAPES)
    assert list(run_folder(tmp_path).glob("tensorboard/**/events.out.tfevents.*"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.soak
def test_wandb_offline(run, tmp_path):
    wandb = pytest.importorskip("wandb")
    _, words, *_ = commands("training/callbacks")
    try:
        run(words, *SHAPES)
        assert wandb.run is None  # the next job of a sweep starts its own
    finally:
        wandb.teardown()  # its service is a process
    assert list(run_folder(tmp_path).glob("wandb/offline-run-*"))


@pytest.mark.soak
def test_a_sweep_of_two_learning_rates(run, tmp_path):
    words, *_ = commands("training/sweeps")
    run(words, *SHAPES)
    (folder,) = (tmp_path / "logs" / "train" / "multiruns").iterdir()
    assert {path.name for path in folder.glob("[0-9]*")} == {"0", "1"}


@pytest.mark.soak
def test_a_sweep_by_optuna(run, tmp_path):
    pytest.importorskip("optuna")
    _, words, *_ = commands("training/sweeps", "Search")
    run(words, *SHAPES)
    (folder,) = (tmp_path / "logs" / "train" / "multiruns").iterdir()
    assert "best_value" in (folder / "optimization_results.yaml").read_text()


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # the resumed run writes into another folder
def test_resume_test_and_predict(run, tmp_path):
    (train,) = commands("training/first-run", "Stop and resume")
    evaluate, *_ = commands("training/evaluate-predict")
    (predict_images,) = commands("training/evaluate-predict", "Predict")
    predict = [word for word in predict_images if not word.startswith("source=")]
    run(["train", "experiment=shapes"], *SHAPES)
    folder = run_folder(tmp_path)
    resume, evaluate, predict = (in_folder(words, folder) for words in (train, evaluate, predict))
    assert "tested: checkpoint" in run(resume, "trainer.max_epochs=2")
    assert "tested: checkpoint" in run(evaluate)
    run(predict)
    (results,) = (tmp_path / "logs" / "predict" / "runs").glob("*/predictions/**/*.json")
    assert isinstance(json.loads(results.read_text()), list)
    write_image(tmp_path / "path/to/images/a.png")
    printed = run(in_folder(predict_images, folder))
    (picture,) = (tmp_path / "logs" / "predict" / "runs").glob("*/predictions/predictions-pictures/a.png.jpg")
    assert str(picture.parent) in printed
