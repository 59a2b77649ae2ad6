"""The picture of workers and the training loop."""

from __future__ import annotations

import pytest
from matplotlib.image import imread

from lit_loader.engine.stats import STAGES, BatchRecord
from lit_loader.monitoring import StepRecord, save_timeline


def batch(worker, start_s):
    stage_s = dict.fromkeys(STAGES, 0.0) | {"decode": 0.6, "collate": 0.2}
    return BatchRecord(worker=worker, number=0, num_samples=4, start_s=start_s, end_s=start_s + 0.8, stage_s=stage_s)


def colours(path):
    pixels = (imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    return {tuple(colour) for colour in pixels.tolist()}


def test_lanes_show_stages_of_workers_and_waiting_of_the_loop(tmp_path):
    steps = [StepRecord(100.0, 0.5, 100.7, 101.0)]
    save_timeline(tmp_path / "both.png", [batch(0, 100.0), batch(3, 100.1)], steps)
    save_timeline(tmp_path / "waiting.png", [], steps)
    both = imread(tmp_path / "both.png")
    # One lane more for each of the two workers, and none for those in between.
    assert both.shape[0] - imread(tmp_path / "waiting.png").shape[0] == 90
    waiting = (0xD5, 0x5E, 0x00)
    assert waiting in colours(tmp_path / "waiting.png")


def test_only_the_end_of_a_long_run_is_shown(tmp_path):
    save_timeline(tmp_path / "long.png", [batch(0, 0.0), batch(1, 100.0)], [], max_s=10.0)
    save_timeline(tmp_path / "short.png", [batch(1, 100.0)], [])
    assert imread(tmp_path / "long.png").shape == imread(tmp_path / "short.png").shape


def test_timeline_without_records_is_refused(tmp_path):
    with pytest.raises(ValueError, match="neither a batch nor a step"):
        save_timeline(tmp_path / "none.png", [], [])
