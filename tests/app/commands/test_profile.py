"""``lit-loader profile``: a real run on a small set, the overrides it prints, and errors with their remedy."""

from __future__ import annotations

import json
import re
import shlex
from argparse import Namespace

import pytest

from lit_loader.app.commands import main, profile
from lit_loader.app.composition import build_datamodule, compose_config
from lit_loader.app.running import setting_override
from tests.support.documents import PAGES, commands

SMALL = [
    "experiment=shapes",
    "dataset.num_images={train: 16, val: 4, test: 4}",
    "dataset.class_shares=[0.6,0.3,0.1]",
    "dataset.image_size=48",
    "dataset.progress=false",
    "datamodule.batch_size=2",
    "workers=inline",
    "trainer=cpu",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, which contains the cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_real_run_measures_loader_step_and_both_and_draws_the_timeline(command, folder):
    picture = folder / "timeline.png"
    # The measurement decides when the training ends, and overrides may be on both sides of an option.
    limits = ["+trainer.max_time=00:00:00:00", "+trainer.min_steps=1000000", "+trainer.min_epochs=1000000"]
    command("profile", *SMALL, "--seconds", "0.3", *limits, "--json", "--no-progress", "--timeline", picture)
    assert command.err == ""
    result = json.loads(command.out)
    assert result["loader"]["num_steps"] >= 1
    assert result["step_s"] > 0
    run = result["run"]
    assert run["num_steps"] >= 1
    assert run["free_step_s"] == result["step_s"]
    assert run["stats"]["stage_s"]["decode"] > 0
    assert run["settings"]["decode"] == "exact"
    assert run["settings"]["cache"] is False
    assert result["diagnosis"]
    assert picture.stat().st_size > 5000
    # The training writes nothing else.
    assert {path.name for path in folder.iterdir()} == {"cache", "timeline.png"}


def test_text_output_has_tables_diagnosis_and_no_step_on_demand(command, folder):
    command("profile", *SMALL, "--seconds", "0.2", "--no-step")
    for part in ("loader alone", "both together", "waiting for data", "decode", "no loader can make this run", "\n- "):
        assert part in command.out
    assert "step alone" not in command.out
    assert "an upper bound" in command.out  # the run is too short for a burst
    assert "measuring both together" in command.err


def test_model_that_ends_the_training_leaves_the_step_unmeasured():
    class NoTraining:
        def fit(self, model, datamodule):
            pass

    with pytest.warns(UserWarning, match="the step alone was not measured"):
        assert profile._measure_step(None, lambda clock: NoTraining(), None, None, 1.0) is None


def test_overrides_of_a_diagnosis_compose_to_its_settings(folder):
    settings = {
        "num_workers": 3,
        "worker_method": "thread",
        "prefetch_factor": 4,
        "persistent_workers": True,
        "pin_memory": True,
        "prefetch_to_device": True,
    }
    write = setting_override(compose_config(overrides=SMALL))
    overrides = [write(name, value) for name, value in {**settings, "decode": "fast", "cache": True}.items()]
    assert overrides[0] == "workers.num_workers=3"
    assert overrides[-2:] == ["datamodule.reading.decode=fast", "datamodule.cache=true"]
    datamodule = build_datamodule(compose_config(overrides=[*SMALL, *overrides]))
    assert {name: getattr(datamodule.workers, name) for name in settings} == settings
    assert datamodule.reading.decode == "fast"
    assert datamodule.reading_arguments["cache"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seconds", "0"], "--seconds 0 must be a time above 0 seconds"),
        (["--timeline", "time.line"], "--timeline time.line: expected a file name ending in ."),
        (["--timeline", "missing/time.png"], "the folder .*missing does not exist"),
        (["datamodule.batch_size=x"], "batch_size"),
    ],
)
def test_wrong_command_exits_with_2(command, folder, words, message):
    command("profile", *SMALL, *words, code=2)
    assert re.search(message, command.err)


def test_commands_of_the_help_and_the_docs_compose(command, folder, monkeypatch):
    help_text = command("profile", "--help")
    assert "formats to read" not in help_text
    lines = [shlex.split(line) for line in help_text.splitlines() if line.startswith("  lit-loader profile")]
    parsed: list[Namespace] = []
    monkeypatch.setattr("lit_loader.app.commands.profile.profile", parsed.append)
    for words in [*(line[2:] for line in lines), *commands(PAGES["workers"], "lit-loader profile")]:
        assert main(["profile", *words]) == 0
        arguments = parsed[-1]
        if arguments.config_name == "train":  # `app` is a placeholder for another config
            assert compose_config(None, arguments.config_name, arguments.overrides).datamodule
    assert len(parsed) >= 5
