"""The wheel with the extra hydra: the program trains, resumes, tests, predicts, converts and tunes in any folder."""

from __future__ import annotations

import json
import re
import textwrap

import pytest

from tests.support.own_app import write_app

SMALL = (
    *("experiment=shapes", "dataset.num_images={train: 32, val: 8, test: 8}", "dataset.image_size=48"),
    *("dataset.class_shares=[0.5,0.3,0.2]", "datamodule.batch_size=4", "workers.num_workers=1"),
    *("model.model.channels=8", "model.model.head_channels=32", "model.model.min_size=48", "trainer=cpu"),
    *("trainer.max_epochs=2", "trainer.log_every_n_steps=1"),
)
RECORDER = """
    from lightning.pytorch import Callback

    class Recorder(Callback):
        def __init__(self, path):
            self.path = path

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            images, targets = batch
            with open(self.path, "a") as file:
                pixels = sum(float(image.double().sum()) for image in images)
                print([int(target["image_id"]) for target in targets], pixels.hex(), file=file)
"""


STEPS = {"dirpath": "steps", "filename": "'{step}'", "every_n_train_steps": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with only a callback of the user."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "my_callbacks.py").write_text(textwrap.dedent(RECORDER))
    return folder


@pytest.fixture(scope="module")
def lit_loader(program, folder):
    """Run a command of the app in that folder on the small scenes, and return its output."""

    def run(command, place, *words):
        recorder = ("+callbacks.record._target_=my_callbacks.Recorder", f"+callbacks.record.path={place}.txt")
        return program(folder, "lit-loader", command, *SMALL, *recorder, f"hydra.run.dir={place}", *words)[0]

    return run


@pytest.fixture(scope="module")
def output(lit_loader):
    """The output of a whole run in the folder ``whole``, which also saves a checkpoint every five steps."""
    every_five_steps = [f"callbacks.last_checkpoint_in_epoch.{key}={value}" for key, value in STEPS.items()]
    return lit_loader("train", "whole", *every_five_steps, "+callbacks.last_checkpoint_in_epoch.save_top_k=-1")


def test_max_steps_ends_a_run_after_the_same_batches(lit_loader, output, folder):
    lit_loader("train", "short", "trainer.max_steps=2")
    batches = (folder / "short.txt").read_text().splitlines()
    assert batches == (folder / "whole.txt").read_text().splitlines()[:2]


def test_whole_run_reports_and_saves_checkpoints(output, folder):
    assert len(set((folder / "whole.txt").read_text().splitlines())) == 16
    assert "mAP@50" in output
    assert {path.name for path in (folder / "whole" / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}


def test_run_resumes_in_mid_epoch_with_the_next_batches(lit_loader, output, folder):
    lit_loader("train", "resumed", "ckpt_path='steps/step=5.ckpt'", "workers=threads")
    whole, resumed = ((folder / f"{name}.txt").read_text().splitlines() for name in ("whole", "resumed"))
    assert resumed == whole[5:]


def test_eval_repeats_the_scores_of_the_run(lit_loader, output):
    tested = lit_loader("eval", "tested", "ckpt_path=whole/checkpoints/best.ckpt")
    scores = re.findall(r"^│ .+ │ [\d.]+ │$", output, re.MULTILINE)
    assert scores
    assert re.findall(r"^│ .+ │ [\d.]+ │$", tested, re.MULTILINE) == scores


def test_predict_writes_results_of_coco(lit_loader, output, folder):
    lit_loader("predict", "predicted", "ckpt_path=whole/checkpoints/best.ckpt")
    (file,) = (folder / "predicted").rglob("*.json")
    assert {"image_id", "category_id", "bbox", "score"} <= set(json.loads(file.read_text())[0])


def test_tune_prints_overrides(program, folder):
    words = ("--budget", 3, "--max-workers", 1, "--no-progress")
    assert "workers.num_workers=" in program(folder, "lit-loader", "tune", *words, *SMALL)[0]


def test_converted_set_is_trained_on(program, folder):
    draw = "from lit_loader.datasets import draw_shapes; print(draw_shapes('shapes', image_size=48, progress=False, "
    draw += "num_images={'train': 8, 'val': 4}, class_shares=(0.5, 0.3, 0.2)))"
    root = program(folder, "python", "-c", draw)[0].strip()
    convert = ("convert", "voc", root, "train", "val", "--to", "coco", "--out", "coco", "--no-progress")
    output, _ = program(folder, "lit-loader", *convert)
    (command,) = (line for line in output.splitlines() if line.startswith("  lit-loader train"))
    data = [word for word in command.split() if word.startswith("dataset")]
    small = [word for word in SMALL if not word.startswith(("dataset", "experiment"))]
    program(folder, "lit-loader", "train", *data, "model=fcos_small", *small, "hydra.run.dir=converted")
    assert (folder / "converted" / "checkpoints" / "last.ckpt").exists()


def test_own_app_composes_and_checks_the_groups(program, tmp_path):
    write_app(tmp_path / "own")
    _, module, mine = program(tmp_path / "own", "python", "app.py", "+seed=3")[0].splitlines()
    assert (module, mine) == ("DetectionDataModule 2 64 3", "5")
    _, errors = program(tmp_path / "own", "python", "app.py", "sampler=no", code=1)
    assert "class_balanced" in errors
