"""Stopped runs leave a checkpoint and print the command that resumes them."""

from __future__ import annotations

import re
import shlex
import signal

import pytest
import torch

from lit_loader.app.composition import ConfigError
from lit_loader.app.running import in_place
from tests.support import app_recorder as recorder
from tests.support.small_app import SMALL, run_app

RECORDED = "+callbacks.recorder._target_=tests.support.app_recorder.Recorder"


def stopping_at(step, name="SIGTERM"):
    return f"+callbacks.stopper={{_target_: tests.support.app_recorder.Stopper, step: {step}, name: {name}}}"


def printed_command(result):
    """Return the arguments of the printed command."""
    (words,) = re.findall(r"^  lit-loader train (.*)$", result.out, re.MULTILINE)
    return [word for word in shlex.split(words) if not word.startswith("+callbacks.")]  # of the tests


def test_run_stopped_by_sigterm_resumes_in_place_to_the_same_weights(tmp_path):
    def run(*words):
        recorder.seen.clear()
        result = run_app(tmp_path, "train", *words)
        return result, recorder.seen[-1]

    words = [*SMALL, "trainer.max_epochs=2", "test=false", RECORDED, "logger=none"]
    _, reference = run(*words, f"hydra.run.dir={tmp_path}/whole")
    stopped, first = run(*words, stopping_at(2), f"hydra.run.dir={tmp_path}/stopped")
    assert stopped.code == 128 + signal.SIGTERM
    (word,) = printed_command(stopped)
    assert word == f"ckpt_path={tmp_path}/stopped/checkpoints/last.ckpt"
    # The override names code, which a file must not bring, so the command repeats it.
    assert shlex.quote(stopping_at(2)) in stopped.out
    resumed, second = run(word, "resume_in_place=true", RECORDED, stopping_at(99))
    assert resumed.code == 0, resumed.err
    assert f"checkpoints in {tmp_path}/stopped" in resumed.out
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "stopped"}
    assert first.batches + second.batches == reference.batches
    for resumed, expected in zip(second.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(resumed, expected)


def test_ctrl_c_prints_the_command_that_resumes(app):
    handler = signal.getsignal(signal.SIGINT)
    try:
        every_step = "callbacks.last_checkpoint_in_epoch.every_n_train_steps=1"
        result = app("train", stopping_at(1, "SIGINT"), every_step, code=130)
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning ignores it for the rest of the process
    assert printed_command(result) == [f"ckpt_path={result.folder}/checkpoints/last.ckpt"]


def test_sigterm_at_the_end_of_the_fit_ends_the_run_before_its_test(app):
    result = app("train", stopping_at(-1), "trainer.limit_train_batches=1", code=143)
    assert printed_command(result) == [f"ckpt_path={result.folder}/checkpoints/last.ckpt"]
    assert "tested" not in result.out


def test_sigterm_in_a_test_is_no_success(app):
    result = app("train", stopping_at(-2), "trainer.limit_train_batches=1", "logger=none", code=143)
    assert "finished" not in result.out


@pytest.mark.filterwarnings("ignore:.*could not find the monitored key")
def test_max_steps_in_an_epoch_with_early_stopping_tests_the_last_checkpoint(app):
    result = app("train", "callbacks=[default,early_stopping]", "trainer.max_steps=2", "logger=none")
    assert f"tested: checkpoint {result.folder}/checkpoints/last.ckpt" in result.out


def test_early_stopping_without_a_validation_split_is_refused(app):
    result = app("train", "callbacks=[default,early_stopping]", "~dataset.num_images.val", code=1)
    assert "early_stopping watches val/map_50, which needs a validation split" in result.err.splitlines()[-1]


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "it's a run"
    (folder / ".hydra").mkdir(parents=True)
    return folder / "checkpoints/last.ckpt"


def test_resuming_in_place_sets_the_folder_of_the_checkpoint(checkpoint):
    words = [f'ckpt_path="{checkpoint}"', "resume_in_place=true"]
    (added,) = in_place(words)[2:]
    assert added == "hydra.run.dir='" + str(checkpoint.parent.parent).replace("'", r"\'") + "'"
    assert in_place([*words, added]) == [*words, added]
    assert in_place([words[0], "resume_in_place=false"]) == [words[0], "resume_in_place=false"]


def test_resuming_in_place_needs_a_run_and_no_sweep(checkpoint, tmp_path):
    for words in ([], [f"ckpt_path={tmp_path}/a/b.ckpt"], [f"ckpt_path={checkpoint}", "-m"]):
        with pytest.raises(ConfigError, match="continues in the folder of one run; pass it with ckpt_path="):
            in_place([*words, "resume_in_place=true"])


@pytest.mark.parametrize(
    ("command", "words", "reason"),
    [
        ("train", [], "pass resume_in_place=true ckpt_path=FILE on the command line"),
        ("eval", ["ckpt_path=last"], "resume_in_place=true works only with train"),
    ],
)
def test_resuming_in_place_is_never_ignored(app, command, words, reason):
    assert reason in app(command, "resume_in_place=true", *words, code=1).err
