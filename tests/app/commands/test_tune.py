"""``lit-loader tune``: a real run on a small set, the printed overrides, and errors with their remedy."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from lit_loader.app.commands import main
from lit_loader.app.composition import build_datamodule, compose_config
from lit_loader.app.tuning import INLINE, METHODS, Candidate, LoaderMeter
from lit_loader.foundation.host import Resources
from tests.support.documents import PAGES, commands
from tests.support.surfaces import figures

SMALL = [
    "dataset=shapes",
    "dataset.num_images={train: 40, val: 12, test: 12}",
    "dataset.class_shares=[0.6,0.3,0.1]",
    "dataset.image_size=48",
    "dataset.progress=false",
    "datamodule.batch_size=4",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, which contains the cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def by_formula(monkeypatch):
    """Replace measurements by a formula: 100 samples/s per worker up to two, threads a quarter more; no time passes."""
    calls = []

    def measure(self, candidate, seconds):
        calls.append((candidate, torch.get_num_threads(), self._step_s))
        rate = 100 * min(2, candidate.num_workers) * (1.25 if candidate.is_threaded else 1) or 90
        return figures(candidate, rate=rate, memory_bytes=1 << 28)

    monkeypatch.setattr(LoaderMeter, "__call__", measure)
    return calls


def test_real_run_measures_both_methods_and_its_overrides_compose(command, folder):
    words = ["--budget", "3", "--max-workers", "1"]
    command("tune", *SMALL, *words, "--json", "--no-progress")
    assert command.err == ""
    report = json.loads(command.out)
    assert {medians["candidate"]["method"] for medians in report["medians"]} == {"inline", "thread", METHODS[1]}
    assert report["refused"] == []
    for medians in report["medians"]:
        assert medians["samples_per_s"] > 0
        assert medians["cpu_s_per_sample"] > 0
        assert medians["memory_bytes"] > 1 << 20
    best = Candidate(**report["best"])
    datamodule = build_datamodule(compose_config(overrides=[*SMALL, *shlex.split(report["overrides"])]))
    settings = {**best.settings(), "multiprocessing_context": None}  # fork is this platform's default
    assert {name: getattr(datamodule.workers, name) for name in settings} == settings
    assert report["verdicts"]


def test_text_output_has_table_reasons_and_overrides(command, folder, by_formula, monkeypatch):
    command("tune", *SMALL)
    assert command.err == ""  # not a terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    command("tune", *SMALL)
    assert "training batches, medians" in command.out
    assert "* 2 thread, prefetch 2" in command.out
    assert "- " in command.out
    last = command.out.rstrip().splitlines()[-1]
    assert last == "  workers.num_workers=2 workers.worker_method=thread workers.prefetch_factor=2"
    assert "measuring inline" in command.err  # the progress


def test_method_and_number_of_workers_can_be_limited(command, folder, by_formula):
    words = ["--method", "spawn", "--method", "fork", "--max-workers", "1", "--json"]
    report = json.loads(command("tune", *SMALL, *words))
    assert {candidate.method for candidate, *_ in by_formula} == {"inline", "spawn", "fork"}
    assert max(candidate.num_workers for candidate, *_ in by_formula) == 1
    assert report["best"]["method"] in ("spawn", "fork")


def test_torch_threads_and_step_of_the_run_are_used_and_restored(command, folder, by_formula):
    num_threads = torch.get_num_threads()
    command("tune", *SMALL, "num_threads=2", "--simulate-step", "40")
    assert {(threads, step_s) for _, threads, step_s in by_formula} == {(2, 0.04)}
    assert torch.get_num_threads() == num_threads


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        # The start method is printed only if it differs from the config's.
        ([], "workers.num_workers=2 workers.worker_method=multiprocessing workers.prefetch_factor=2"),
        (
            ["workers.multiprocessing_context=spawn"],
            "workers.num_workers=2 workers.worker_method=multiprocessing workers.multiprocessing_context="
            f"{METHODS[1]} workers.prefetch_factor=2",
        ),
        (
            ["+datamodule.num_workers=1"],
            "datamodule.num_workers=2 workers.worker_method=multiprocessing workers.prefetch_factor=2",
        ),
    ],
)
def test_overrides_fit_the_config(command, folder, by_formula, overrides, words):
    report = json.loads(command("tune", *SMALL, *overrides, "--method", METHODS[1], "--json"))
    assert report["overrides"] == words


def test_threads_reset_the_start_method(command, folder, by_formula):
    overrides = [*SMALL, "workers.multiprocessing_context=spawn"]
    report = json.loads(command("tune", *overrides, "--json"))
    assert "workers.multiprocessing_context=null" in report["overrides"]
    overrides += shlex.split(report["overrides"])
    assert build_datamodule(compose_config(overrides=overrides)).workers.worker_method == "thread"


@pytest.mark.parametrize("step", [[], ["--simulate-step", "40"]])
def test_choice_of_auto_is_printed_with_its_reason(command, folder, by_formula, monkeypatch, step):
    host = Resources(num_cores=2)
    monkeypatch.setattr("lit_loader.app.commands.tune.read_resources", lambda **_: host)
    words = [*SMALL, "--method", "fork", *step]
    report = json.loads(command("tune", *words, "--json"))
    assert (report["best"]["num_workers"], report["auto"]["num_workers"]) == (2, 1)
    out = command("tune", *words)
    assert "num_workers='auto' is 1: 2 cores, of which the training step keeps one; 100 samples/s were" in out
    assert ("workers had every core: pass --simulate-step MS" in out) is (not step)


def test_inline_needs_one_override(command, folder, monkeypatch):
    monkeypatch.setattr(LoaderMeter, "__call__", lambda self, c, s: figures(c, rate=100 if c == INLINE else 50))
    report = json.loads(command("tune", *SMALL, "--json"))
    assert report["overrides"] == "workers.num_workers=0"
    assert any(verdict.startswith("no gain in rate") for verdict in report["verdicts"])


def test_unusable_settings_are_printed_with_their_reason(command, folder, monkeypatch):
    def measure(self, candidate, seconds):
        if candidate.is_threaded:
            raise RuntimeError("draws from numpy.random")
        return figures(candidate)

    monkeypatch.setattr(LoaderMeter, "__call__", measure)
    out = command("tune", *SMALL)
    assert "1 thread, prefetch 2 cannot be used: RuntimeError: draws from numpy.random" in out


OWN = """
defaults: [{dataset: shapes}, _self_]
hydra: {searchpath: ['pkg://lit_loader.conf']}
dataset: {image_size: 48, num_images: {train: 40, val: 12, test: 12}, class_shares: [0.6, 0.3, 0.1], progress: true}
datamodule: {_target_: own_module_of_a_test.Own, source: '${dataset}', batch_size: 4}
"""
OWN_MODULE = "from lit_loader import DetectionDataModule\nclass Own(DetectionDataModule): pass\n"


def test_own_config_and_its_module_are_found(command, folder, by_formula):
    (folder / "app").mkdir()
    (folder / "app" / "mine.yaml").write_text(OWN)
    (folder / "own_module_of_a_test.py").write_text(OWN_MODULE)
    original_path = list(sys.path)
    try:
        report = json.loads(command("tune", "--config-dir", "app", "--config-name", "mine", "--json"))
    finally:
        sys.modules.pop("own_module_of_a_test", None)
    words = (
        "+datamodule.workers.num_workers=2 +datamodule.workers.worker_method=thread "
        "+datamodule.workers.prefetch_factor=2"
    )
    assert report["overrides"] == words
    assert sys.path == original_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "soon"], "--budget: invalid float value: 'soon'"),
        (["--budget", "0"], "--budget 0 must be a time above 0 seconds"),
        (["--budget", "nan"], "--budget nan must be a time above 0 seconds"),
        (["--max-workers", "0"], "--max-workers 0 must be at least 1"),
        (["--simulate-step", "-1"], "--simulate-step -1 must be at least 0 milliseconds"),
        (["--simulate-step", "nan"], "--simulate-step nan must be at least 0 milliseconds"),
        (["--method", "threads"], "--method: invalid choice: 'threads' (choose from 'thread', '"),
        (["--config-dir", "no"], "Primary config directory not found"),
        (["--config-name", "no"], "Cannot find primary config 'no'"),
        (["sampler=no"], "class_balanced"),
        (["workers.num_worker=2"], "did you mean workers.num_workers?"),
        (["workers.num_workers=two"], "should be int or 'auto'"),
        (["datamodule.batch_size=0"], "datamodule: batch_size=0"),
        (["datamodule={_target_: builtins.dict}"], "datamodule is a dict"),
        (["~datamodule"], "the config has no key 'datamodule'; its keys: task_name"),
    ],
    ids=str,
)
def test_wrong_command_or_config_exits_with_2_and_a_remedy(command, folder, words, message):
    command("tune", "dataset=shapes", *words, code=2)
    assert message in command.err
    assert list(folder.iterdir()) == []


def test_unusable_data_exits_with_1(command, folder):
    command("tune", *SMALL, "datamodule.batch_size=64", "datamodule.drop_last=true", "--no-progress", code=1)
    assert "training has no batch: 40 samples" in command.err


def test_commands_of_the_help_and_the_docs_compose(command, folder, monkeypatch):
    help_text = command("tune", "--help")
    assert "formats to read" not in help_text
    assert "exit codes: 0 done" in help_text
    lines = [shlex.split(line) for line in help_text.splitlines() if line.startswith("  lit-loader tune")]
    parsed: list[Namespace] = []
    monkeypatch.setattr("lit_loader.app.commands.tune.tune", parsed.append)
    root = Path(__file__).parents[3]
    for words in [*(line[2:] for line in lines), *commands(PAGES["command-line/tune"], "lit-loader tune")]:
        assert main(["tune", *words]) == 0
        arguments = parsed[-1]
        if arguments.config_name == "train":  # `app` stands for the user's own config
            config_dir = arguments.config_dir and root / arguments.config_dir
            cfg = compose_config(config_dir, arguments.config_name, arguments.overrides)
            assert cfg.datamodule.workers.num_workers == 2
    assert len(parsed) >= 6
