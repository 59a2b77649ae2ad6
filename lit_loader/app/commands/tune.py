"""``lit-loader tune``: measure worker settings on the data of a config, and print the best with the reason."""

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

from lit_loader.app.commands.config_data import loader_datamodule
from lit_loader.app.commands.printing import print_lines, print_table, shows_progress
from lit_loader.app.commands.settings import UsageError
from lit_loader.app.composition import worker_override
from lit_loader.app.running import config_errors
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
from lit_loader.foundation.host import PROCESS_BYTES, THREAD_BYTES, Resources, decide_num_workers, read_resources

__all__ = ["tune"]


def tune(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument or the config is wrong.
        ValueError: If the data yields no training batch.
        OSError: If a file cannot be read.
    """
    _check(arguments)
    original_path = list(sys.path)
    num_threads = torch.get_num_threads()
    # The config may name modules in the current folder, as in `lit_loader.app.run`.
    sys.path.insert(0, str(Path.cwd()))
    try:
        cfg, datamodule = loader_datamodule(arguments)
        # The main process of a run has as many threads for torch's operators.
        torch.set_num_threads(cfg.get("num_threads") or num_threads)
        config_context = datamodule.workers.multiprocessing_context
        host = read_resources(has_accelerator=torch.accelerator.is_available())
        # A dataset may print, and stdout may be JSON.
        with redirect_stdout(sys.stderr), config_errors(cfg):
            datamodule.prepare_data()
            tuned = _search(datamodule, host, arguments)
    finally:
        sys.path[:] = original_path
        torch.set_num_threads(num_threads)
    settings = _changed_settings(tuned.best, config_context)
    overrides = " ".join(worker_override(cfg, name, value) for name, value in settings.items())
    # A single measurement may have been disturbed by another process.
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
            "verdicts": verdicts,
            "medians": [asdict(medians) for medians in figures],
            "refused": [{**asdict(candidate), "reason": why} for candidate, why in tuned.refused.items()],
        }
        print_lines(json.dumps(result, indent=1))
        return
    rows = [_row(medians, tuned) for medians in figures]
    print_table("training batches, medians", list(rows[0]), [list(row.values()) for row in rows])
    print_lines(*(f"{candidate!s} cannot be used: {why}" for candidate, why in tuned.refused.items()))
    print_lines(*([] if choice is None else [f"- {choice}"]))
    print_lines(*(f"- {verdict}" for verdict in verdicts), f"- {auto['text']}", "")
    print_lines(f"best: {tuned.best!s}; to use it:", "", f"  {overrides}")


def _check(arguments: argparse.Namespace) -> None:
    """Refuse wrong arguments before the long measurement."""
    if not 0 < arguments.budget < math.inf:
        raise UsageError(f"--budget {arguments.budget:g} must be a time above 0 seconds")
    if not 0 <= arguments.simulate_step < math.inf:
        raise UsageError(f"--simulate-step {arguments.simulate_step:g} must be at least 0 milliseconds")
    if arguments.max_workers is not None and arguments.max_workers < 1:
        raise UsageError(f"--max-workers {arguments.max_workers} must be at least 1")


def _search(datamodule: LoaderDataModule, host: Resources, arguments: argparse.Namespace) -> TuningResult:
    """Search for the fastest settings, with the progress as a line on standard error."""
    # A progress bar of rich would have a thread, which must not live when workers fork.
    meter = LoaderMeter(datamodule, step_s=arguments.simulate_step / 1e3)
    methods = arguments.method or ("thread", datamodule.workers.multiprocessing_context or METHODS[1])
    # Workers that wait for a disk or a network are faster in larger numbers than there are cores.
    max_workers = max(4, 2 * host.num_cores)
    memory_limit = host.max_workers()
    if memory_limit is not None:
        max_workers = max(1, min(max_workers, memory_limit))

    has_progress = shows_progress(arguments)

    def show(candidate: Candidate, elapsed_s: float) -> None:
        if has_progress:
            sys.stderr.write(f"\r{elapsed_s:5.0f} of {arguments.budget:g} s: measuring {candidate!s:30}")
            sys.stderr.flush()

    try:
        return search_settings(
            meter,
            num_cores=max(1, round(host.cores)),
            methods=list(dict.fromkeys(methods)),
            max_workers=arguments.max_workers or max_workers,
            budget_s=arguments.budget,
            progress=show,
        )
    finally:
        sys.stderr.write("\n" if has_progress else "")


def _changed_settings(best: Candidate, context: str | None) -> dict[str, Any]:
    """Return the settings to print; the start method only if it differs from the config's."""
    if best.num_workers == 0:
        return {"num_workers": 0}
    settings = best.settings()
    # Another start method in the config would be used for processes, and is refused for threads.
    if (best.is_threaded and context is None) or best.method == (context or METHODS[1]):
        del settings["multiprocessing_context"]
    return settings


def _auto(figures: list[Measurement], best: Candidate, host: Resources, step_ms: float) -> dict[str, Any]:
    """Return the number of workers that ``num_workers="auto"`` chooses here, and why it may differ from the best."""
    worker_bytes = THREAD_BYTES if best.is_threaded else PROCESS_BYTES
    number, text = decide_num_workers(host, worker_bytes=worker_bytes)
    rates = [medians.samples_per_s for medians in figures if medians.candidate.num_workers == number]
    if rates:
        text += f"; {max(rates):.0f} samples/s were measured with this number"
    # With an accelerator the step costs no core, so the measurement without a step is close to a run.
    if number != best.num_workers and not host.has_accelerator and not step_ms:
        text += ". No training step ran, so workers had every core: pass --simulate-step MS to simulate one"
    return {"num_workers": number, "text": text}


def _row(figures: Measurement, tuned: TuningResult) -> dict[str, str]:
    """Return the cells of a row of the table, by column."""
    rates = [measurement.samples_per_s for measurement in tuned.measured[figures.candidate]]
    return {
        "settings": f"{'*' if figures.candidate == tuned.best else ' '} {figures.candidate!s}",
        "samples/s": f"{figures.samples_per_s:.1f}",
        "spread": f"{min(rates):.0f} to {max(rates):.0f}",
        "CPU ms per sample": f"{figures.cpu_s_per_sample * 1e3:.2f}",
        "cores": f"{figures.cores_used:.2f}",
        "memory MiB": "" if figures.memory_bytes is None else f"{figures.memory_bytes / 2**20:.0f}",
        "start s": f"{figures.start_s:.2f}",
        "measured": f"{len(rates)} x",
    }
