"""Schedules of samplers on the command line: training, resuming, and errors."""

from __future__ import annotations

import pytest

SCHEDULE = "sampler.exponent={points:{0:0.0,2:1.0}}"
SMALLER = {"channels": 8, "head_channels": 32, "min_size": 48, "max_size": 64}
MIX = [
    *("dataset=mixed", "model=fcos_small", "workers=inline", "trainer=cpu", "trainer.enable_progress_bar=false"),
    *(f"model.model.{name}={value}" for name, value in SMALLER.items()),
]


def test_schedule_is_a_word_of_the_command_and_survives_a_resume(app):
    trained = app("train", "sampler=class_balanced", SCHEDULE, "sampler.num_samples=8")
    assert "epochs 0 → 2" in trained.out
    checkpoint = trained.folder / "checkpoints" / "last.ckpt"
    resumed = app("train", f"ckpt_path={checkpoint}", "trainer.max_epochs=2", small=False)
    assert "epochs 0 → 2" in resumed.out
    assert "other sampler" not in resumed.err


def test_checkpoint_is_not_continued_with_another_schedule(app):
    trained = app("train", "sampler=class_balanced", SCHEDULE)
    checkpoint = trained.folder / "checkpoints" / "last.ckpt"
    word = "sampler.exponent={points:{0:0.0,3:1.0}}"
    result = app("train", f"ckpt_path={checkpoint}", "trainer.max_epochs=2", word, small=False, code=1)
    assert "fingerprint=" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sampler.exponent={choices:[0.0,1.0]}"], "sampler.exponent={choices: [0.0,1.0]} is drawn for every batch"),
        (["sampler.exponent={points:{0:0.0,9:2.0}}"], "`exponent` must be in [0, 1], got exponent="),
        (["sampler.exponent={point:{0:0.0}}"], "sampler.exponent={point: {0: 0.0}} is a mapping that describes no"),
        (
            ["sampler=random", "sampler.empty_share={points:{0:0.1}}"],
            "sampler.empty_share={'points': {0: 0.1}} should be float",
        ),
        (["sampler=weighted", "sampler.exponent={points:{-1:0.1}}"], "has the epoch -1"),
    ],
)
def test_wrong_schedule_is_named_by_its_key(app, words, message):
    result = app("train", "sampler=class_balanced", *words, code=1)
    assert message in result.err
    assert "Traceback" not in result.err


def test_ratio_by_epoch_is_a_word_of_the_command(app):
    source = "{_target_: lit_loader.datasets.ShapesSource, num_images: {train: 6, val: 3}, image_size: 48, seed: %d}"
    words = [
        *MIX,
        f"dataset.sources={{real: {source % 0}, drawn: {source % 1}}}",
        "dataset.ratio={real: 1, drawn: {points: {0: 3, 1: 0}}}",
        "dataset.num_samples=8",
        "trainer.max_epochs=2",
        "model.scheduler=null",
        "~callbacks.pictures",
        "~callbacks.curves",
        "~callbacks.rich_progress",
    ]
    trained = app("train", *words, small=False)
    assert "75.0% → 0.0%" in trained.out
    failed = app("train", *words, "dataset.num_samples=null", small=False, code=1)
    assert "num_samples=null leaves the length of an epoch open" in failed.err
