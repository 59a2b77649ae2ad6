"""``lit-loader tune``: measures worker settings on a config's own data, and names the best and the reason."""

from __future__ import annotations

import argparse
import json
import math
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lit_loader.app.commands.printing import print_lines, print_table
from lit_loader.app.commands.settings import UsageError, usage_errors
from lit_loader.app.composition import build_datamodule, compose_config, worker_override
from lit_loader.app.tuning import (
    METHODS,
    Candidate,
    LoaderMeter,
    Measurement,
    TuningResult,
    diagnose,
    explain_choice,
    median,
    search_settings,
)
from lit_loader.datamodules import LoaderDataModule
from lit_loader.foundation.host import (
    PROCESS_BYTES,
    THREAD_BYTES,
    Resources,
    decide_num_workers,
    read_resources,
)

__all__ = ["tune"]


def tune(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument or the config is wrong.
        ValueError: If the data gives no training batch.
        OSError: If a file cannot be read.
    """
    _check(arguments)
    path, num_threads = list(sys.path), torch.get_num_threads()
    sys.path.insert(0, str(Path.cwd()))  # for modules that the config names, as in a script there
    try:
        cfg, datamodule = _datamodule(arguments)
        torch.set_num_threads(cfg.get("num_threads") or num_threads)  # what the run gives torch's operators
        given = datamodule.workers.multiprocessing_context
        host = read_resources(has_accelerator=torch.accelerator.is_available())
        with redirect_stdout(sys.stderr):  # a data set may print, and the output may be JSON
            datamodule.prepare_data()
            tuned = _search(datamodule, host, arguments)
    finally:
        sys.path[:] = path
        torch.set_num_threads(num_threads)
    settings = _changed(tuned.best, given)
    overrides = " ".join(worker_override(cfg, name, value) for name, value in settings.items())
    figures = tuned.medians()
    verdicts = diagnose(figures, median(tuned.measured[tuned.best]), host)
    choice = explain_choice(tuned)
    auto = _auto(figures, tuned.best, host, arguments.simulate_step)
    if arguments.json:
        result = {
            "best": asdict(tuned.best),
            "choice": choice,
            "overrides": overrides,
            "auto": auto,
            "verdicts": [verdict._asdict() for verdict in verdicts],
            "medians": [asdict(each) for each in figures],
            "refused": [{**asdict(candidate), "reason": why} for candidate, why in tuned.refused.items()],
        }
        print_lines(json.dumps(result, indent=1))
        return
    rows = [_row(each, tuned) for each in figures]
    print_table("training batches, medians", list(rows[0]), [list(row.values()) for row in rows])
    print_lines(*(f"{candidate!s} cannot be used: {why}" for candidate, why in tuned.refused.items()))
    print_lines(*([] if choice is None else [f"- {choice}"]))
    print_lines(*(f"- {verdict.text}" for verdict in verdicts), f"- {auto['text']}", "")
    print_lines(f"best: {tuned.best!s}; to use it:", "", f"  {overrides}")


def _check(arguments: argparse.Namespace) -> None:
    """Refuse before a long measurement what would fail after it."""
    if not 0 < arguments.budget < math.inf:
        raise UsageError(f"--budget {arguments.budget:g} must be a time above 0 seconds")
    if not 0 <= arguments.simulate_step < math.inf:
        raise UsageError(f"--simulate-step {arguments.simulate_step:g} must be at least 0 milliseconds")
    if arguments.max_workers is not None and arguments.max_workers < 1:
        raise UsageError(f"--max-workers {arguments.max_workers} must be at least 1")


def _datamodule(arguments: argparse.Namespace) -> tuple[Any, LoaderDataModule]:
    with usage_errors():
        cfg = compose_config(arguments.config_dir, arguments.config_name, arguments.overrides)
        datamodule = build_datamodule(cfg)
    if not isinstance(datamodule, LoaderDataModule):
        raise UsageError(
            f"datamodule is a {type(datamodule).__name__}; tune sets the workers of a "
            "lit_loader.datamodules.LoaderDataModule"
        )
    return cfg, datamodule


def _search(datamodule: LoaderDataModule, host: Resources, arguments: argparse.Namespace) -> TuningResult:
    """Search; the progress is a line on standard error, and no thread of its own lives when workers fork."""
    meter = LoaderMeter(datamodule, step_s=arguments.simulate_step / 1e3)
    methods = arguments.method or ("thread", datamodule.workers.multiprocessing_context or METHODS[1])
    most, fitting = max(4, 2 * host.num_cores), host.max_workers()
    most = most if fitting is None else max(1, min(most, fitting))

    def show(candidate: Candidate, elapsed_s: float) -> None:
        if not arguments.no_progress:
            sys.stderr.write(f"\r{elapsed_s:5.0f} of {arguments.budget:g} s: measuring {candidate!s:30}")
            sys.stderr.flush()

    try:
        return search_settings(
            meter,
            num_cores=max(1, round(host.cores)),
            methods=list(dict.fromkeys(methods)),
            max_workers=arguments.max_workers or most,
            budget_s=arguments.budget,
            progress=show,
        )
    finally:
        meter.restore()
        sys.stderr.write("" if arguments.no_progress else "\n")


def _changed(best: Candidate, context: str | None) -> dict[str, Any]:
    """Return the settings to write down: the start method only where the config has another one."""
    if best.num_workers == 0:
        return {"num_workers": 0}
    chosen = best.settings()
    if (best.is_threaded and context is None) or best.method == (context or METHODS[1]):
        del chosen["multiprocessing_context"]
    return chosen


def _auto(figures: list[Measurement], best: Candidate, host: Resources, step_ms: float) -> dict[str, Any]:
    """Return how many workers ``num_workers="auto"`` takes here, and why that may differ from the best."""
    worker_bytes = THREAD_BYTES if best.is_threaded else PROCESS_BYTES
    number, text = decide_num_workers(host, worker_bytes=worker_bytes)
    rates = [each.samples_per_s for each in figures if each.candidate.num_workers == number]
    if rates:
        text += f"; {max(rates):.0f} samples/s were measured with as many"
    if number != best.num_workers and not host.has_accelerator and not step_ms:
        text += ". Only batches were computed, so that workers had every core: give --simulate-step MS to change that"
    return {"num_workers": number, "text": text}


def _row(figures: Measurement, tuned: TuningResult) -> dict[str, str]:
    """Return the cells of the table, by their columns."""
    rates = [each.samples_per_s for each in tuned.measured[figures.candidate]]
    return {
        "settings": f"{'*' if figures.candidate == tuned.best else ' '} {figures.candidate!s}",
        "samples/s": f"{figures.samples_per_s:.1f}",
        "spread": f"{min(rates):.0f} to {max(rates):.0f}",
        "CPU ms a sample": f"{figures.cpu_s_per_sample * 1e3:.2f}",
        "cores": f"{figures.cores_used:.2f}",
        "memory MiB": "" if figures.memory_bytes is None else f"{figures.memory_bytes / 2**20:.0f}",
        "start s": f"{figures.start_s:.2f}",
        "measured": f"{len(rates)} x",
    }
