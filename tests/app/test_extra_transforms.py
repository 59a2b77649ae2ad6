"""Transforms of the user on the command line: instances in order, a list at the start of a run, mistakes explained."""

from __future__ import annotations

import re

import pytest

AFFINE = "{_target_: torchvision.transforms.v2.RandomAffine, degrees: 9}"
JITTER = "{_target_: torchvision.transforms.v2.ColorJitter, brightness: 0.2}"
NESTED = f"{{_target_: torchvision.transforms.v2.RandomApply, transforms: [{JITTER}], p: 0.25}}"
SHORT = ["test=false", "trainer.limit_train_batches=2", "trainer.limit_val_batches=1"]
TRAIN = "datamodule.train_transforms"


def test_a_run_applies_the_transforms_of_the_command_in_order(app):
    words = [f"{TRAIN}.extra_before=[{NESTED}]", f"{TRAIN}.extra_after=[{AFFINE},{JITTER}]"]
    result = app("train", *words, f"datamodule.val_transforms={{extra_after: [{JITTER}]}}", *SHORT)
    lines = [line.strip() for line in result.out.splitlines()]
    start = lines.index("train transforms:")
    end = lines.index("test, predict transforms:")
    steps = [line for line in lines[start:end] if line.startswith(("Random", "Color", "val"))]
    assert steps == [
        "RandomApply([ColorJitter(brightness=[0.8, 1.2])], p=0.25)",
        "RandomPhotometricDistort(p=0.5)",
        "RandomHorizontalFlip(p=0.5)",
        "RandomVerticalFlip(p=0.5)",
        "RandomAffine(degrees=[-9, 9])",
        "ColorJitter(brightness=[0.8, 1.2])",
        "val transforms:",
        "ColorJitter(brightness=[0.8, 1.2])",
    ]
    assert not any("Affine" in line or "Color" in line for line in lines[end:])
    assert (result.folder / "checkpoints/last.ckpt").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[{_target_: torchvision.transforms.v2.RandAugment}]", "would move pixels without their boxes"),
        ("[{_target_: torchvision.transforms.v2.RandomAffine, degree: 5}]", "did you mean .*degrees"),
        ("[RandAugment]", "_target_: torchvision.transforms.v2.RandAugment"),
        ("[{_target_: torchvision.transforms.v2.ColorJitter, _partial_: true}]", "in YAML leave out _partial_"),
        ("[{_target_: torchvision.transforms.RandomRotation, degrees: 5}]", "use torchvision.transforms.v2.RandomRot"),
        (JITTER, r"extra_after is a list of transforms; put .*: \S+extra_after=\[{_target_: ...}\]"),
        ("ColorJitter", "extra_after='ColorJitter' should be Sequence"),
    ],
)
def test_a_mistake_ends_the_run_with_its_remedy(app, value, message):
    result = app("train", f"{TRAIN}.extra_after={value}", code=1)
    text = " ".join((result.out + result.err).split())
    assert "Traceback" not in text
    assert re.search(message, text), text


@pytest.mark.soak
def test_eval_and_predict_go_without_the_extras_of_training_and_a_resume_repeats_them(app, tmp_path, monkeypatch):
    word = f"{TRAIN}.extra_after=[{JITTER}]"
    folder = app("train", word, *SHORT).folder
    monkeypatch.chdir(tmp_path)
    checkpoint = f"ckpt_path={folder.name}/checkpoints/last.ckpt"
    for command in ("eval", "predict"):
        result = app(command, checkpoint, small=False)
        assert f"since {command} does not use them: '{word}'" in result.err
        assert "ColorJitter" not in result.out
    resume = [checkpoint, "trainer.max_epochs=2"]
    refusal = app("train", *resume, small=False, code=1).err
    assert f"If you trust them, add them to the command: '{word}'" in refusal
    assert "ColorJitter" in app("train", *resume, word, *SHORT, small=False).out
