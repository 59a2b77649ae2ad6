"""The table of a sweep: results that jobs in other processes wrote, failed jobs, and files that hold no result."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import OmegaConf

from lit_loader.app.composition import ConfigError
from lit_loader.app.running import run
from lit_loader.app.sweep import SweepTable, print_unfinished_sweep
from tests.support.extras import needs
from tests.support.small_app import SMALL, in_folder


def config(folder, number=0, words=(), *, mode=RunMode.MULTIRUN, **settings):
    hydra_config = {
        "mode": mode,
        "runtime": {"cwd": str(folder)},
        "sweep": {"dir": "sweep"},
        "job": {"num": number},
        "overrides": {"task": ["seed=1", *words]},
        "launcher": {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"},
    }
    model = {"_target_": "lit_loader.recipes.DetectionTask"}
    return OmegaConf.create({"hydra": hydra_config, "model": model, **settings})


def result(value):
    failed = isinstance(value, Exception)
    status = JobStatus.FAILED if failed else JobStatus.COMPLETED
    return JobReturn(_return_value=value, status=status)


def sweep(folder, *values, end=True, **settings):
    """Call the callback as a launcher with other processes does, for one job per value; None leaves a job running."""
    callback = SweepTable()
    callback.on_multirun_start(config(folder))
    for number, value in enumerate(values):
        job_callback = pickle.loads(pickle.dumps(callback))
        job_config = config(folder, number, [f"lr={number}"], **settings)
        job_callback.on_job_start(config=job_config)
        if value is not None:
            job_callback.on_job_end(config=job_config, job_return=result(value))
    if end:
        callback.on_multirun_end(config(folder))


def rows(printed):
    return re.findall(r"^│ (\S+) +│ (.*?) +│ (.*?) +│$", printed, re.MULTILINE)


def test_jobs_in_other_processes_are_in_the_table_and_the_best_is_marked(tmp_path, capsys):
    sweep(tmp_path, 0.25, 0.5, float("nan"))
    printed = capsys.readouterr().out
    assert "val/map_50" in printed
    assert rows(printed) == [("0", "lr=0", "0.25"), ("1", "lr=1", "0.5 (best)"), ("2", "lr=2", "nan")]


def test_best_of_an_optimized_metric_is_not_guessed(tmp_path, capsys):
    sweep(tmp_path, 0.25, 0.5, optimized_metric="train/loss")
    printed = capsys.readouterr().out
    assert "train/loss" in printed
    assert [cells[2] for cells in rows(printed)] == ["0.25", "0.5"]


def test_failed_and_killed_jobs_are_listed_with_their_reason(tmp_path, capsys):
    sweep(tmp_path, 0.5, ConfigError("no such model"), RuntimeError("out of memory\nfor x"), None, end=False)
    print_unfinished_sweep()
    printed = capsys.readouterr().out
    assert [cells[2] for cells in rows(printed)] == ["0.5 (best)", "failed", "failed", "not finished"]
    assert "job 1 failed: no such model\n" in printed
    assert "job 2 failed: RuntimeError: out of memory\n" in printed
    assert "job 3 has not finished" in printed
    print_unfinished_sweep()
    assert capsys.readouterr().out == ""


def test_secrets_in_errors_are_not_stored(tmp_path, capsys):
    url = "https://me:hunter2@host/x?sig=hunter2"
    sweep(tmp_path, ConfigError(f"root={url} is refused"), OSError(f"{url} is not there"))
    (*files,) = (tmp_path / "sweep" / ".jobs").iterdir()
    printed = capsys.readouterr().out
    assert "job 0 failed: root=https://***@host/x?*** is refused" in printed
    assert "job 1 failed: OSError: https://***@host/x?*** is not there" in printed
    assert not any("hunter2" in text for text in [printed, *(file.read_text() for file in files)])


def test_secrets_in_overrides_are_not_stored(tmp_path, capsys):
    callback = SweepTable()
    callback.on_multirun_start(config(tmp_path))
    callback.on_job_start(config(tmp_path, 0, ["logger.wandb.api_key=hunter2"]))
    callback.on_multirun_end(config(tmp_path))
    (file,) = (tmp_path / "sweep" / ".jobs").iterdir()
    assert "hunter2" not in file.read_text() + capsys.readouterr().out


def test_results_of_an_earlier_sweep_in_the_folder_are_dropped(tmp_path, capsys):
    sweep(tmp_path, 0.1, 0.2, 0.3)
    capsys.readouterr()
    sweep(tmp_path, 0.4)
    assert [cells[0] for cells in rows(capsys.readouterr().out)] == ["0"]


def test_folder_among_the_results_is_left_alone(tmp_path, capsys):
    folder = tmp_path / "sweep" / ".jobs" / "1.json"
    folder.mkdir(parents=True)
    sweep(tmp_path, 0.4)
    assert [cells[0] for cells in rows(capsys.readouterr().out)] == ["0"]
    assert folder.is_dir()


def test_further_ranks_of_a_job_write_no_result(tmp_path):
    SweepTable().on_job_start(config(tmp_path, mode=RunMode.RUN))
    assert not (tmp_path / "sweep").exists()


FIELDS = {"overrides": ["lr=1"], "metric": "loss", "mode": "min", "value": "1.5", "state": "completed", "reason": ""}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[" * 50_000,
        json.dumps({**FIELDS, "value": "one"}),
        json.dumps({**FIELDS, "value": []}),
        json.dumps({**FIELDS, "overrides": 7}),
        json.dumps({**FIELDS, "metric": "x" * 100_000}),
        json.dumps({**FIELDS, "value": 10**400}),
    ],
    ids=["empty", "no keys", "nested", "text", "list", "number", "long", "large"],
)
def test_file_that_holds_no_result_is_left_out(tmp_path, capsys, text):
    sweep(tmp_path, 0.5, end=False)
    folder = tmp_path / "sweep" / ".jobs"
    (folder / "1.json").write_text(text)
    (folder / "other.json").write_text(json.dumps(FIELDS))
    os.mkfifo(folder / "2.json")
    print_unfinished_sweep()
    assert [cells[0] for cells in rows(capsys.readouterr().out)] == ["0"]


def test_texts_of_a_result_are_printed_without_control_characters(tmp_path, capsys):
    sweep(tmp_path, 0.5, end=False)
    hostile = {**FIELDS, "overrides": ["\x1b[2Jlr"], "mode": ["min"], "state": "failed", "reason": "[red]\x1b[31mx"}
    (tmp_path / "sweep" / ".jobs" / "1.json").write_text(json.dumps(hostile))
    print_unfinished_sweep()
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert r"job 1 failed: [red]\x1b[31mx" in printed


@hydra.main(version_base="1.3", config_path="pkg://lit_loader.conf", config_name="train")
def main(cfg):
    if cfg.seed == 2:
        raise ConfigError("seed=2 is unlucky")
    return 0.5 * cfg.seed


def test_failed_job_ends_a_sweep_with_its_table_and_exit_code_1(tmp_path):
    words = ["-m", "dataset=shapes", "seed=1,2,3", f"paths.log_dir={tmp_path}"]
    outcome = in_folder(tmp_path, lambda: run(main, words))
    assert outcome.code == 1
    assert rows(outcome.out) == [("0", "seed=1", "0.5"), ("1", "seed=2", "failed"), ("2", "seed=3", "1.5 (best)")]
    assert "job 1 failed: seed=2 is unlucky" in outcome.out
    assert outcome.err.endswith("error in the config: seed=2 is unlucky\n")


@pytest.mark.parametrize("word", ["sas_key=sesame", "sas_key=sesame,{a: b}", "sas_key={a: [sesame]}"])
def test_sweep_with_a_credential_of_a_store_is_refused_before_any_job(tmp_path, word):
    words = ["-m", "dataset=files", f"++dataset.storage.{word}", "seed=1,2", f"paths.log_dir={tmp_path}/logs"]
    outcome = in_folder(tmp_path, lambda: run(main, words))
    assert outcome.code == 1
    assert "dataset.storage.sas_key" in outcome.err
    assert "${oc.env:NAME}" in outcome.err
    assert "sesame" not in outcome.out + outcome.err
    assert not (tmp_path / "logs").exists()


def test_sweep_with_a_credential_of_the_environment_is_not_refused(tmp_path):
    SweepTable().on_multirun_start(config(tmp_path, words=["dataset.storage.sas_key=${oc.env:A},${oc.env:B}"]))
    print_unfinished_sweep()


@pytest.mark.parametrize(
    ("num_jobs", "num_workers", "advice"),
    [
        (4, 2, "pass workers.num_workers=1 or hydra.launcher.n_jobs=2"),
        (-1, 2, "pass workers.num_workers=1 or hydra.launcher.n_jobs=2"),
        (2, "auto", "pass workers.num_workers=2 or hydra.launcher.n_jobs=1"),
        (4, 0, None),
        (2, 2, None),
        (1, 8, None),
    ],
)
def test_more_workers_than_cores_are_warned_of(tmp_path, monkeypatch, capsys, num_jobs, num_workers, advice):
    monkeypatch.setattr("lit_loader.app.sweep.count_cores", lambda: 4)
    cfg = config(tmp_path, workers={"num_workers": num_workers})
    cfg.hydra.launcher = {"_target_": "a.JoblibLauncher", "n_jobs": num_jobs}
    SweepTable().on_multirun_start(cfg)
    warning = capsys.readouterr().err
    print_unfinished_sweep()
    assert warning.endswith(f"on 4 cores; {advice}\n") if advice else warning == ""


def test_missing_launcher_is_named_with_its_extra(app, monkeypatch):
    Plugins.instance()  # finds the launchers, once in a process
    for launcher, extra in (("joblib", "joblib"), ("submitit_slurm", "submitit")):
        monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["launcher"], f"{launcher}.yaml", raising=False)
        assert f"pip install 'lit-loader[{extra}]'" in app("train", f"hydra/launcher={launcher}", code=1).err


PROGRAM = [sys.executable, "-c", "import sys; from lit_loader.app.commands import main; sys.exit(main())"]
JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]


def run_sweep(folder, *words):
    """Run a sweep with three jobs in a process of its own; return it with the value of each learning rate."""
    command = [*PROGRAM, "train", "-m", *SMALL, "test=false", "logger=none", *words]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    values = dict(re.findall(r"model\.optimizer\.lr=(\S+) +│ (.*?) +│", process.stdout))
    assert len(values) == 3, process.stdout + process.stderr
    assert sum("(best)" in value for value in values.values()) == 1
    return process, values


@needs("joblib")
@needs("submitit")
@pytest.mark.soak
@pytest.mark.parametrize("launcher", [JOBLIB, ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5"]])
def test_jobs_of_every_launcher_are_in_the_table(tmp_path, launcher):
    process, values = run_sweep(tmp_path, *launcher, "model.optimizer.lr=1e-7,0.01,x")
    assert values["x"] == "failed"
    assert "job 2 failed: model.optimizer.lr='x' should be float or Tensor" in process.stdout
    assert process.returncode == 1
    (folder,) = (tmp_path / "logs/train/multiruns").iterdir()
    assert len(list(folder.glob("*/results.json"))) == 2


@needs("joblib")
@needs("optuna")
@pytest.mark.soak
def test_parallel_trials_of_optuna_are_in_the_table(tmp_path):
    words = ["hparams_search=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=2"]
    process, _ = run_sweep(tmp_path, *JOBLIB, *words)
    assert process.returncode == 0
