"""``lit-loader tune``: measures worker settings on a config's own data, and names the best and the reason."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lit_loader.cli.printing import print_lines, print_table
from lit_loader.cli.settings import UsageError
from lit_loader.configs import ConfigError, build_datamodule, compose_config, worker_override
from lit_loader.datamodules import LoaderDataModule
from lit_loader.resources import PROCESS_BYTES, Resources, read_resources
from lit_loader.tuning import (
    METHODS,
    Candidate,
    Host,
    LoaderMeter,
    Measurement,
    TuningResult,
    Verdict,
    default_method,
    diagnose,
    save_plot,
    search_settings,
)

__all__ = ["parse_seconds", "tune"]

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_PLOTS: Final = (".png", ".pdf", ".svg")


def tune(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument or the config is wrong.
        ValueError: If the data gives no training batch.
        OSError: If a file cannot be read, or the picture not be written.
    """
    budget_s = parse_seconds(arguments.budget)
    plot = _checked_plot(arguments.plot)
    if not 0 <= arguments.simulate_step < math.inf:
        raise UsageError(f"--simulate-step {arguments.simulate_step:g} must be at least 0 milliseconds")
    if arguments.max_workers is not None and arguments.max_workers < 1:
        raise UsageError(f"--max-workers {arguments.max_workers} must be at least 1")
    for method in arguments.method or ():
        if method not in METHODS:
            raise UsageError(f"--method {method!r} is not one of {', '.join(METHODS)}")
    with _modules_of_this_folder():
        try:
            cfg = compose_config(arguments.config_dir, arguments.config_name, arguments.overrides)
            datamodule = build_datamodule(cfg)
        except ConfigError as error:
            raise UsageError(str(error)) from error
        if not isinstance(datamodule, LoaderDataModule):
            raise UsageError(
                f"datamodule is a {type(datamodule).__name__}; tune sets the workers of a "
                "lit_loader.datamodules.LoaderDataModule"
            )
        given = {
            name: getattr(datamodule.workers, name) for name in ("worker_method", "multiprocessing_context")
        }
        own_method = given["multiprocessing_context"] or default_method()
        # what a data set prints meanwhile is not part of the output, which may be JSON
        with _threads_of(cfg.get("num_threads")), redirect_stdout(sys.stderr):
            resources = read_resources()
            host = _host(resources)
            datamodule.prepare_data()
            tuned = _search(
                LoaderMeter(datamodule, step_s=arguments.simulate_step / 1e3),
                num_cores=max(1, round(host.cores)),
                methods=list(dict.fromkeys(arguments.method or ("thread", own_method))),
                max_workers=arguments.max_workers or _most_workers(resources),
                budget_s=budget_s,
                draw=not arguments.no_progress,
            )
    figures = tuned.medians()
    verdicts = diagnose(figures, tuned.best, host)
    overrides = [
        worker_override(cfg, name, value) for name, value in _changed(tuned.best, given, own_method).items()
    ]
    save_plot(figures, tuned.best, plot, title=f"training batches of {type(datamodule).__name__}")
    report = _print_json if arguments.json else _print_report
    report(tuned, figures, verdicts, " ".join(overrides), plot)


def parse_seconds(text: str) -> float:
    """Return the seconds that a text such as ``90``, ``60s`` or ``1.5m`` means.

    Raises:
        UsageError: If it is not a time above 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds > 0:
        raise UsageError(f"--budget {text!r} must be a time above 0, such as 60s or 2m")
    return seconds


def _checked_plot(text: str) -> Path:
    """Refuse before a long measurement what would fail after it."""
    path = Path(text)
    if path.suffix not in _PLOTS:
        raise UsageError(f"--plot {text} must end in one of {', '.join(_PLOTS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {text}: there is no folder {path.parent}; make it, or give another one")
    return path


def _host(resources: Resources) -> Host:
    return Host(
        num_cores=resources.num_cores, quota_cores=resources.quota_cores, num_threads=torch.get_num_threads()
    )


def _most_workers(resources: Resources) -> int:
    """Return how many workers are worth trying: twice the cores, at least 4, within half of the memory."""
    most = max(4, 2 * resources.num_cores)
    if resources.available_bytes is None:
        return most
    return max(1, min(most, resources.available_bytes // 2 // PROCESS_BYTES))


def _search(meter: LoaderMeter, *, budget_s: float, draw: bool, **settings: Any) -> TuningResult:
    """Search with a progress bar, drawn on standard error by this thread: no other one lives when workers fork."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, disable=not draw) as bar:
        task = bar.add_task("measuring", total=budget_s)

        def show(candidate: Candidate, elapsed_s: float) -> None:
            bar.update(task, completed=elapsed_s, description=f"measuring {candidate!s:24}", refresh=True)

        try:
            tuned = search_settings(meter, budget_s=budget_s, progress=show, **settings)
        finally:
            meter.restore()
        bar.update(task, completed=budget_s, description="measured", refresh=True)
    return tuned


def _changed(best: Candidate, given: dict[str, Any], own_method: str) -> dict[str, Any]:
    """Return the settings to write down: the start method only where the config has another one."""
    chosen = best.settings()
    if best.num_workers == 0:
        return {"num_workers": 0}
    context = given["multiprocessing_context"]
    if (best.is_threaded and context is None) or best.method == own_method:
        del chosen["multiprocessing_context"]
    return chosen


def _print_report(
    tuned: TuningResult,
    figures: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    overrides: str,
    plot: Path,
) -> None:
    """Print for a person."""
    rows = [_row(each, tuned) for each in figures]
    columns = (
        "settings",
        "samples/s",
        "spread",
        "CPU ms a sample",
        "cores",
        "memory MiB",
        "start s",
        "measured",
    )
    print_table("training batches, medians", columns, rows)
    for candidate, reason in tuned.refused.items():
        print_lines(f"{candidate!s} cannot be used: {reason}")
    for verdict in verdicts:
        print_lines(f"- {verdict.text}")
    print_lines("", f"picture: {plot}", f"best: {tuned.best!s}; to use it:", "", f"  {overrides}")


def _row(figures: Measurement, tuned: TuningResult) -> tuple[str, ...]:
    rates = [each.samples_per_s for each in tuned.measured[figures.candidate]]
    mark = "* " if figures.candidate == tuned.best else "  "
    memory = "" if figures.memory_bytes is None else f"{figures.memory_bytes / 2**20:.0f}"
    return (
        f"{mark}{figures.candidate!s}",
        f"{figures.samples_per_s:.1f}",
        f"{min(rates):.0f} to {max(rates):.0f}",
        f"{figures.cpu_s_per_sample * 1e3:.2f}",
        f"{figures.cores_used:.2f}",
        memory,
        f"{figures.start_s:.2f}",
        f"{len(rates)} x",
    )


def _print_json(
    tuned: TuningResult,
    figures: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    overrides: str,
    plot: Path,
) -> None:
    """Print for a program."""
    result = {
        "best": asdict(tuned.best),
        "overrides": overrides,
        "verdicts": [verdict._asdict() for verdict in verdicts],
        "medians": [asdict(each) for each in figures],
        "rates": [
            {**asdict(candidate), "samples_per_s": [each.samples_per_s for each in measured]}
            for candidate, measured in sorted(tuned.measured.items())
        ],
        "refused": [{**asdict(candidate), "reason": reason} for candidate, reason in tuned.refused.items()],
        "plot": str(plot),
    }
    print_lines(json.dumps(result, indent=1))


@contextmanager
def _modules_of_this_folder() -> Iterator[None]:
    """Let a config name modules of the current folder, as a script there may."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


@contextmanager
def _threads_of(num_threads: int | None) -> Iterator[None]:
    """Give torch's operators the threads that the run has, for as long as it is measured."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
