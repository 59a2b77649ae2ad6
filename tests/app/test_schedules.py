"""Schedules on the command line: values by epoch, pictures, mistakes explained, and repeated by a resume."""

from __future__ import annotations

import re

import pytest

TRAIN = "datamodule.train_transforms"
SHORT = ["test=false", "trainer.limit_train_batches=2", "trainer.limit_val_batches=1"]
BLUR = "{_target_: torchvision.transforms.v2.GaussianBlur, _partial_: true, kernel_size: 5}"
SCHEDULED = (
    f"{{_target_: lit_loader.transforms.ScheduledTransform, transform: {BLUR}, "
    "sigma: {points: {0: 0.1, 10: 2.0}}, epochs: [0, 85]}"
)


def test_a_run_follows_the_schedules_of_the_command(app, tmp_path, monkeypatch):
    words = [f"{TRAIN}.hflip={{points:{{0:0.5,10:0.0}}}}", f"{TRAIN}.size={{choices:[64,96]}}"]
    # A detector of one size would undo the choices, and a fit warns of it.
    words.append("model.model.min_size=[48,64]")
    # A resume does not replay words with a target, so its command repeats them.
    targets = [f"{TRAIN}.extra_after=[{SCHEDULED}]", "+callbacks.pictures._target_=lit_loader.callbacks.PictureLogger"]
    result = app("train", *words, *targets, *SHORT)
    for row in (
        r"train_transforms.size: one of \[64, 96\] a batch",
        r"train_transforms.hflip +│ +0.5 │ +0 │",
        r"GaussianBlur.sigma +│ +0.1 │ +2 │",
    ):
        assert re.search(row, result.out), result.out
    assert "GaussianBlur.epochs: on in epochs 0 to 84, else off" in result.out
    assert "Resize(size=[96])" in result.out
    assert list(result.folder.rglob("schedules.png"))
    # Numbers in a stored command are data, so a resume repeats them without being asked.
    monkeypatch.chdir(tmp_path)
    checkpoint = f"ckpt_path={result.folder.name}/checkpoints/last.ckpt"
    resumed = app("train", checkpoint, "trainer.max_epochs=2", *targets, *SHORT, small=False)
    assert re.search(r"train_transforms.hflip +│ +0.5 │ +0 │", resumed.out)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("hflip={points:{0:0.5,10:1.5}}", r"hflip=1.5 is not a probability in \[0, 1\] \(in epoch 10"),
        ("hflip={pionts:{0:0.5}}", "describes no schedule"),
        ("hflip={points:{0:0.5},stpe:1}", "stpe.* is not one of"),
        (
            "extra_after=[{_target_: torchvision.transforms.v2.GaussianBlur, kernel_size: 5, sigma: {points: {0: 1}}}]",
            r"extra_after.0.sigma=.* should be .*; for a schedule, wrap .* lit_loader.transforms.ScheduledTransform",
        ),
        ("size={points:{0:64,7:96}}", "give a schedule a step"),
        ("hflip=often", "hflip='often' should be float"),
    ],
)
def test_a_mistake_ends_the_run_with_its_remedy(app, word, message):
    result = app("train", f"{TRAIN}.{word}", code=1)
    text = " ".join((result.out + result.err).split())
    assert "Traceback" not in text
    assert re.search(message, text), text
