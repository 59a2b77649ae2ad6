"""``lit-loader eval`` and resumed runs say how their data differs from the checkpoint's; ``--strict-data`` refuses."""

from __future__ import annotations

import re

import pytest

from lit_loader.app.commands.main import main
from lit_loader.app.composition.stored_overrides import replay_overrides
from tests.support.small_app import SMALL, run_app

OTHER_TEST = "dataset.num_images={train: 16, val: 8, test: 10}"
OTHER_VAL = "dataset.num_images={train: 16, val: 10, test: 8}"
CHANGED = "data changed since the checkpoint: "


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that was started with ``--strict-data``, which changes nothing without a checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    result = run_app(folder, "train", "--strict-data", *SMALL, f"hydra.run.dir={folder}", "logger=none")
    assert result.code == 0, result.err
    assert CHANGED not in result.out + result.err
    return folder


@pytest.fixture
def rerun(app, run):
    """Runs a command with a checkpoint of the run."""

    def command(name, checkpoint, *words, **options):
        words = ["trust_run=true", "logger=none", f"ckpt_path={run}/checkpoints/{checkpoint}.ckpt", *words]
        return app(name, *words, small=False, **options)

    return command


@pytest.mark.parametrize(
    "words",
    [
        ("datamodule.batch_size=3", "workers.num_workers=1", "seed=3"),
        # Evaluation does not use the data of training.
        (OTHER_VAL, "datamodule.train_transforms.hflip=0.1"),
    ],
)
def test_strict_eval_of_the_same_data_is_accepted(rerun, words):
    assert CHANGED not in rerun("eval", "best", "--strict-data", *words).out


def test_eval_warns_in_one_plain_line_on_the_console_and_in_the_log(rerun):
    result = rerun("eval", "best", OTHER_TEST)
    for text in (result.out, (result.folder / "eval.log").read_text()):
        (line,) = (line for line in text.splitlines() if CHANGED in line)
        assert re.search(f"WARNING.* {CHANGED}test: 10 images instead of 8, labels differ \\(disc ", line)
        assert ".py" not in line
    assert CHANGED not in result.err


def test_strict_eval_refuses_with_one_line(rerun):
    result = rerun("eval", "best", "--strict-data", OTHER_TEST, code=1)
    (line,) = (line for line in result.err.splitlines() if CHANGED in line)
    assert line.startswith(f"error: {CHANGED}test: 10 images instead of 8, ")
    assert line.endswith("restore the data and settings of the checkpoint, or pass datamodule.strict_data=false")
    assert "Traceback" not in result.err
    assert "tested:" not in result.out


def test_resumed_run_warns(rerun):
    result = rerun("train", "last", "trainer.max_epochs=2", OTHER_VAL)
    assert f"{CHANGED}val: 10 images instead of 8" in result.out
    assert "finished" in result.out


def test_strict_resumed_run_is_refused_with_one_line(rerun):
    result = rerun("train", "last", "--strict-data", "trainer.max_epochs=2", OTHER_VAL, code=1)
    (line,) = (line for line in result.err.splitlines() if CHANGED in line)
    assert line.startswith(f"error: {CHANGED}val: 10 images instead of 8, ")
    assert "Traceback" not in result.err


def test_the_flag_of_a_run_is_not_replayed(run):
    words = ["trust_run=true", f"ckpt_path={run}/checkpoints/best.ckpt"]
    assert "datamodule.strict_data=true" in (run / ".hydra" / "overrides.yaml").read_text()
    assert not any("strict_data" in word for word in replay_overrides(words))


@pytest.mark.parametrize("command", ["train", "eval"])
def test_help_names_the_flag(command, capsys):
    assert main([command, "--help"]) == 0
    assert "--strict-data" in capsys.readouterr().out


def test_prediction_has_no_such_flag(capsys):
    assert main(["predict", "--strict-data"]) == 2
    assert "unrecognized arguments: --strict-data" in capsys.readouterr().err
