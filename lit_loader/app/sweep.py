"""The table of a sweep's results, whichever launcher runs its jobs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lit_loader.app.composition import ConfigError
from lit_loader.app.composition.hints import explain
from lit_loader.app.secrets import credential_keys, masked_override, override_credential_keys
from lit_loader.errors import LitLoaderError
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.files import new_file
from lit_loader.foundation.host import count_cores
from lit_loader.foundation.masking import mask_addresses

__all__ = ["SweepTable", "print_unfinished_sweep"]

# NOTE [Results of a sweep]
# joblib, submitit and ray run jobs in other processes, with copies of this process's callbacks. Attributes that a copy
# sets are lost, and Hydra gives the values of the jobs to the sweeper alone. So each job writes its result to a file in
# the folder of the sweep, also under Hydra's own launcher, and the process that started the sweep reads the files.
_FOLDER: Final = ".jobs"  # in the folder of the sweep, as submitit's `.submitit`
_MAX_BYTES: Final = 1 << 16  # a result has a few hundred bytes
_MAX_REASON: Final = 500  # characters

_unfinished_sweep: ContextVar[Path | None] = ContextVar("unfinished_sweep", default=None)


@dataclass(frozen=True, kw_only=True)
class _JobResult:
    """The state of a job in a sweep.

    Attributes:
        overrides: The overrides of the job, without passwords.
        metric: Name of the returned value.
        mode: ``"min"`` or ``"max"`` if the better direction of the metric is known, else None.
        value: The returned value as text, since JSON has no NaN; None if the job returned no number.
        state: ``"running"``, ``"completed"`` or ``"failed"``.
        reason: The error of a failed job, else empty.
    """

    overrides: tuple[str, ...]
    metric: str
    mode: str | None
    value: str | None = None
    state: str = "running"
    reason: str = ""


class SweepTable(Callback):
    """A Hydra callback that prints the overrides and the returned value of each job when a sweep ends.

    If the value is the task's own metric, whose direction is known, the best job is marked. A failed job is listed with
    its error. Jobs in other processes and on other hosts are in the table if they share the folder of the sweep.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Delete the results of an earlier sweep in the same folder.

        Raises:
            SystemExit: If the sweep would show credentials of a store.
        """
        _refuse_credentials(config)
        folder = _results_folder(config)
        _unfinished_sweep.set(folder)
        for path in _result_paths(folder).values():
            if path.is_file() or path.is_symlink():
                path.unlink(missing_ok=True)
        _warn_of_many_workers(config)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Record that a job is running, since a killed job does not record its end."""
        _write_result(config, state="running")

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Record the value that a job returned, or its error."""
        if job_return.status == JobStatus.COMPLETED:
            number = job_return.return_value
            value = str(float(number)) if isinstance(number, int | float) else None
            _write_result(config, state="completed", value=value)
        else:
            _write_result(config, state="failed", reason=_reason(job_return))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the table."""
        print_unfinished_sweep()


def print_unfinished_sweep() -> None:
    """Print the table of the sweep that this process has started, unless that has been done.

    Hydra calls no callback at the end of a sweep with a failed job.
    """
    folder = _unfinished_sweep.get()
    _unfinished_sweep.set(None)
    if folder is None:
        return
    results = _read_results(folder)
    if results:
        _print_table(results)


def _results_folder(config: DictConfig) -> Path:
    # A relative path starts where the sweep started; a job may have changed to its own folder.
    return Path(config.hydra.runtime.cwd, str(config.hydra.sweep.dir), _FOLDER)


def _write_result(config: DictConfig, **fields: Any) -> None:
    # Further ranks of a job run it without a sweep.
    if config.hydra.mode != RunMode.MULTIRUN:
        return
    # Iterating over the list would resolve `${oc.env:NAME}` in an override.
    words: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    metric, mode = _metric(config)
    result = _JobResult(overrides=tuple(map(masked_override, words)), metric=metric, mode=mode, **fields)
    # The umask applies, so that other users can read the results as they read the logs.
    with new_file(_results_folder(config) / f"{config.hydra.job.num}.json", mode=0o666) as file:
        file.write(json.dumps(asdict(result)).encode())


def _metric(config: DictConfig) -> tuple[str, str | None]:
    """Return the name of the optimised metric, and the mode of a metric whose direction is known."""
    # The config does not say whether a higher or a lower value of this metric is better.
    if config.get("optimized_metric"):
        return str(config.optimized_metric), None
    task = get_object(config.model["_target_"]) if OmegaConf.select(config, "model._target_") else None
    mode = getattr(task, "monitor_mode", None)
    return str(getattr(task, "monitor", "value")), mode if mode in ("min", "max") else None


def _reason(job_return: JobReturn) -> str:
    """Return the first line of a failed job's error."""
    try:
        # Hydra raises the error here, and prints the overrides of the job first.
        with redirect_stderr(StringIO()):
            _ = job_return.return_value
    except Exception as error:
        text = explain(error).strip().partition("\n")[0]
        # The app's errors are sentences; of others the type says more than the text.
        is_sentence = isinstance(error, ConfigError | HydraException | LitLoaderError | OmegaConfBaseException)
        return mask_addresses(text if is_sentence else f"{type(error).__name__}: {text}")[:_MAX_REASON]
    return ""


def _result_paths(folder: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in folder.glob("*.json") if path.stem.isdecimal()}


def _read_results(folder: Path) -> dict[int, _JobResult]:
    """Return the results in a folder by the number of the job; files that hold none are left out."""
    results = {number: _read_result(path) for number, path in sorted(_result_paths(folder).items())}
    return {number: result for number, result in results.items() if result is not None}


def _read_result(path: Path) -> _JobResult | None:
    """Return the result in a file, or None if it holds none; its texts are only printed."""
    if not path.is_file():  # a pipe would wait for a writer
        return None
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES)
        fields = json.loads(text)
        return _JobResult(
            overrides=tuple(map(str, fields["overrides"])),
            metric=str(fields["metric"]),
            mode=fields["mode"] if fields["mode"] in ("min", "max") else None,
            value=None if fields["value"] is None else str(float(fields["value"])),
            state=str(fields["state"]),
            reason=str(fields["reason"]),
        )
    except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def _print_table(results: dict[int, _JobResult]) -> None:
    # Importing rich takes time that a single run need not spend.
    from rich.console import Console
    from rich.table import Table

    # Show only overrides that differ between jobs; a single job shows all of its overrides.
    override_sets = [set(result.overrides) for result in results.values()]
    shared = set.intersection(*override_sets) if len(override_sets) > 1 else set()
    metrics = {(result.metric, result.mode) for result in results.values()}
    # Jobs of different tasks cannot be compared.
    name, mode = metrics.pop() if len(metrics) == 1 else ("value", None)
    best = _best([float(result.value) for result in results.values() if result.value is not None], mode)
    table = Table("job", "overrides", printable(name), title="results of the jobs", title_justify="left")
    for number, result in results.items():
        differing = " ".join(word for word in result.overrides if word not in shared)
        table.add_row(str(number), printable(differing), _cell(result, best))
    console = Console(width=100, markup=False)
    console.print(table)
    for number, result in results.items():
        if result.state == "failed":
            console.print(printable(f"job {number} failed: {result.reason}"), soft_wrap=True, highlight=False)
        elif result.state != "completed":
            console.print(f"job {number} has not finished: it was killed or stopped", soft_wrap=True, highlight=False)


def _best(values: Sequence[float], mode: str | None) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return {"min": min, "max": max}[mode](finite) if finite and mode is not None else None


def _cell(result: _JobResult, best: float | None) -> str:
    if result.state != "completed":
        return "failed" if result.state == "failed" else "not finished"
    if result.value is None:
        return "no value"
    return f"{float(result.value):.4g}{' (best)' if float(result.value) == best else ''}"


def _refuse_credentials(config: DictConfig) -> None:
    """End a sweep with credentials of a store: Hydra prints the overrides of a job, and submitit stores its config."""
    words: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    keys = [*credential_keys(OmegaConf.to_container(config, resolve=False))]
    keys += [key for word in words for key in override_credential_keys(word)]
    if keys:
        # Of an Exception in a callback Hydra makes a warning.
        sys.stderr.write(
            printable(
                f"error in the config: {keys[0]} has a credential, which a sweep (-m) would print and store; give it "
                f"by the store's own environment variable, or as '{keys[0]}=${{oc.env:NAME}}' with a variable NAME\n"
            )
        )
        raise SystemExit(1)


def _warn_of_many_workers(config: DictConfig) -> None:
    """Warn if the jobs that joblib runs at once have more workers than this host has cores."""
    launcher = config.hydra.launcher
    if not str(launcher.get("_target_")).endswith(".JoblibLauncher"):
        return
    cores = count_cores()
    # As joblib reads it: -1 is one job per core.
    num_jobs = launcher.n_jobs if launcher.n_jobs > 0 else max(1, cores + 1 + launcher.n_jobs)
    num_workers = OmegaConf.select(config, "workers.num_workers")
    # Each job would decide on its workers as if it had the host for itself.
    num_workers = cores - 1 if num_workers == "auto" else num_workers or 0
    if num_jobs > 1 and num_jobs * num_workers > cores:
        sys.stderr.write(
            f"warning: hydra.launcher.n_jobs={launcher.n_jobs} runs up to {num_jobs} jobs at once, with {num_workers} "
            f"workers each on {cores} cores; pass workers.num_workers={cores // num_jobs} or "
            f"hydra.launcher.n_jobs={max(1, cores // num_workers)}\n"
        )
