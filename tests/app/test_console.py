"""The console of a run, its log file, and the loss of a short run in the loggers."""

from __future__ import annotations

import csv
import logging
import re
import sys
import warnings

import pytest

from lit_loader.app.log import logged_run


def test_log_file_is_a_copy_of_the_console_without_uninformative_lines(app):
    words = ["trainer.log_every_n_steps=50", "trainer.max_epochs=2", "~trainer.enable_model_summary"]
    result = app("train", *words)
    lines = re.findall(r"^epoch \d/1  step \d  loss .*$", result.out, re.MULTILINE)
    assert len(lines) == 2
    assert "lr 0.01" in lines[0]
    assert "val/map_50" in lines[0]
    log = (result.folder / "train.log").read_text()
    position = 0
    for line in result.out.splitlines():
        position = log.index(line, position)
    assert "`Trainer.fit` stopped: `max_epochs=2` reached." in log
    for text in ("Tip", "litlogger", "already configured", "LeafSpec", "logging interval"):
        assert text not in result.err + log
    with (result.folder / "csv/version_0/metrics.csv").open() as file:
        losses = [row["train/loss"] for row in csv.DictReader(file)]
    assert len([loss for loss in losses if loss]) == 2  # one per epoch, although both are shorter than 50 steps


@pytest.fixture
def log_file(tmp_path):
    handler = logging.FileHandler(tmp_path / "run.log")
    logging.root.addHandler(handler)
    yield tmp_path / "run.log"
    logging.root.removeHandler(handler)
    handler.close()


def test_log_file_has_warnings_and_tracebacks_but_no_progress_bar(log_file, capsys):
    @logged_run()
    def job():
        sys.stdout.write("\x1b[1mbold\x1b[0m\n")
        sys.stdout.write("\r\x1b[2K 50%")
        warnings.warn("too warm", stacklevel=1)
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"), pytest.warns(UserWarning, match="too warm"):
        job()
    text = log_file.read_text()
    assert text.startswith("bold\nUserWarning: too warm\n")
    assert "50%" not in text
    assert "KeyError: 'gone'" in text
    sys.stdout.write("after the run")
    assert log_file.read_text() == text
    assert "50%" in capsys.readouterr().out
