"""The page of a run, ``README.md`` in its folder: data, versions, scores, files and the commands that continue it."""

from __future__ import annotations

import csv
import io
import itertools
import logging
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import DictConfig, OmegaConf

from lit_loader.app.building import Run, parameter_sizes
from lit_loader.app.composition.stored_overrides import overrides_to_repeat
from lit_loader.app.launch import read_launch
from lit_loader.app.results import BestValidation, write_results
from lit_loader.app.secrets import is_secret_key
from lit_loader.callbacks import ClassMixMonitor, SigtermCheckpoint
from lit_loader.callbacks.attached import find_callback
from lit_loader.datamodules import TableDataModule
from lit_loader.foundation.escaping import escape_formula, escape_markdown, quote_for_hydra, shell_command
from lit_loader.foundation.files import new_file
from lit_loader.recipes import Task
from lit_loader.recipes.metrics import Report

__all__ = ["RunPage", "commands", "git_commit", "last_checkpoint", "masked_override", "secret_overrides"]

_log = logging.getLogger(__name__)

# A run that does not import one of these does not depend on its version.
_PACKAGES: Final = ("torch", "torchvision", "lightning", "lit_loader", "numpy", "transformers", "timm", "rfdetr")
_STAGES: Final = ("train", "val", "test")
_MAX_CLASSES: Final = 30
# Whole words: a tokenizer and a number of tokens are settings.
_SECRET: Final = re.compile(
    r"(?:^|[._-])(?:auth|authorization|pwd|\w*?(?:password|passwd|passphrase|secret|credentials?|token)"
    r"|(?:\w*?[_-])?(?:api|access|private|secret)[_-]?keys?)(?=$|[._-])|(?:^|\.)(?:secrets|tokens)(?=$|\.)",
    re.IGNORECASE,
)
_FILES: Final = {
    "results.json": "every metric, and the scores of the best validation and of the test",
    "class_mix.csv": "objects of each class in each set, and the classes in training batches",
    "versions.json": "versions of Python and packages, the commit of the folder",
    "curves/curves.png": "curves of the test",
    "curves/confusion.csv": "confusion matrix of the test",
    "curves/worst_images.png": "worst images of the test",
    "pictures/class_report.png": "classes: their shares and scores",
    "pictures/train_batch.png": "a training batch",
    "pictures/predictions.png": "predictions in the last validation",
    "pictures/mirrored.png": "objects and their mirror images, with the names of points",
    "pictures/schedules.png": "schedules",
    "csv/version_0/metrics.csv": "metrics of each step and epoch",
    "data_monitor.json": "time spent waiting for data",
    "bad_samples.jsonl": "samples that could not be read",
    "train.log": "console output",
    ".hydra/config.yaml": "the composed config",
    ".hydra/overrides.yaml": "the overrides of the command",
}
"""Files of a run by path, with a description; only those that exist are listed."""


class RunPage:
    """Writes ``README.md``, ``versions.json`` and ``class_mix.csv`` into the folder of a run, on rank 0.

    The page is written before the fit, and again after it, also after an error: a run whose process was killed has the
    first page. Names from files are escaped. Environment variables are not written; values of overrides whose key looks
    like a password are replaced, and so are passwords and queries of addresses. An error while writing is logged, and
    the run continues.

    Args:
        run: The run.
        validation: Record of the best validation.
        checkpoint: Checkpoint that the fit resumes from, or None.
    """

    def __init__(self, run: Run, validation: BestValidation, *, checkpoint: str | None = None) -> None:
        self._run = run
        self._validation = validation
        self._checkpoint = checkpoint
        self._start = datetime.now().astimezone()

    def write(self, state: str, *, tested: str | None = None, is_running: bool = False) -> None:
        """Write the files.

        Args:
            state: State of the run, such as ``running`` or ``finished``; one line.
            tested: Description of the tested checkpoint, or None before a test.
            is_running: If True, the commands name checkpoints that are not saved yet.
        """
        if not self._run.trainer.is_global_zero:
            return
        folder = self._run.folder
        try:
            versions = _versions(self._run)
            write_results(folder / "versions.json", versions)
            rows = _class_rows(self._run)
            if rows:
                text = io.StringIO()
                csv.writer(text, lineterminator="\n").writerows(map(escape_formula, row) for row in rows)
                _write(folder / "class_mix.csv", text.getvalue())
            checkpoints = _checkpoints(self._run, with_future=is_running)
            parts = (
                self._summary(state, tested),
                _class_lines(rows),
                _file_lines(self._run, checkpoints),
                _command_lines(self._run, checkpoints),
                ["## Versions", "", *_table(("", ""), versions.items())],
            )
            # Last, since the page lists the other files.
            _write(folder / "README.md", "\n".join(itertools.chain(*parts)) + "\n")
        # The page reads models, data and configs of users, and no surprise in them is worth the training.
        except Exception as error:
            _log.warning("%s could not be written: %s: %s", folder / "README.md", type(error).__name__, error)

    def _summary(self, state: str, tested: str | None) -> Iterator[str]:
        run = self._run
        yield f"# Training run {escape_markdown(run.folder.name)}"
        yield ""
        yield f"State: {escape_markdown(_without_logins(state))}."
        yield ""
        yield from _table(("", ""), self._facts())
        yield from self._scores(tested)

    def _facts(self) -> Iterator[tuple[str, str]]:
        run = self._run
        # A value such as `${oc.env:NAME}` stays unresolved.
        cfg: Any = OmegaConf.to_container(run.cfg, resolve=False)
        experiment = _experiment()
        if experiment is not None:
            yield "experiment", experiment
        network = getattr(run.model, "model", None)
        yield "task", type(run.model).__name__ + ("" if network is None else f" with {type(network).__name__}")
        yield "parameters", f"{sum(parameter_sizes(run.model)):,}"
        dataset = cfg.get("dataset")
        if isinstance(dataset, dict):
            kind = str(dataset.get("format") or dataset.get("_target_", "")).rpartition(".")[2]
            root = dataset.get("root")
            yield "data", f"{kind} in {_without_logins(str(root))}" if root else kind
        yield from _set_sizes(run)
        yield "seed", str(cfg.get("seed"))
        trainer = run.trainer
        hosts = f" on {trainer.num_nodes} hosts" if trainer.num_nodes > 1 else ""
        yield "devices", f"{trainer.world_size} x {trainer.strategy.root_device}{hosts}, precision {trainer.precision}"
        yield "started", self._start.strftime("%Y-%m-%d %H:%M:%S %z")
        yield "written", datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
        yield "epochs, steps", f"{trainer.current_epoch} of {trainer.max_epochs}, {trainer.global_step}"
        if self._checkpoint is not None:
            yield "resumed from", self._checkpoint

    def _scores(self, tested: str | None) -> Iterator[str]:
        best = self._validation.best
        # Only Lightning's own attribute says whether a test has run.
        is_tested = tested is not None and isinstance(self._run.model, Task) and self._run.model.test_scores is not None
        columns: dict[str, Mapping[str, float]] = {}
        if best:
            title = f"best validation (epoch {best['epoch']}, step {best['step']})"
            columns[title] = _flat(best.get("report", [])) or best["metrics"]
        if is_tested:
            columns["test"] = _flat(self._run.model.test_report())  # type: ignore[operator] # a Task
        if not columns:
            return
        yield "## Scores"
        yield ""
        if tested is not None:
            yield f"Tested: {escape_markdown(tested)}."
            yield ""
        names = dict.fromkeys(name for scores in columns.values() for name in scores)
        rows = [(name, *(_number(scores.get(name)) for scores in columns.values())) for name in names]
        yield from _table(("score", *columns), rows)


def commands(run: Run, checkpoints: tuple[str, str], *, relative: bool) -> dict[str, str]:
    """Return the commands that resume, test and predict with a run, to be typed in the folder where it was started.

    Overrides with a secret are left out, see `secret_overrides`.

    Args:
        run: The run.
        checkpoints: Paths of the checkpoint to resume from, and of the best one.
        relative: Name checkpoints relative to the folder where the run was started, so that the commands still work
            after the project has moved; otherwise by whole paths.
    """
    last, best = (_relative(path, run.cfg) if relative else path for path in checkpoints)
    config_dirs, config_name = _own_configs()

    def words(program: Sequence[str], checkpoint: str) -> str:
        # Hydra parses a path as an override's value.
        path = checkpoint if re.fullmatch(r"[\w./-]+", checkpoint, re.ASCII) else quote_for_hydra(checkpoint)
        repeated = [word for word in overrides_to_repeat(_overrides(), checkpoint) if masked_override(word) == word]
        return shell_command([*program, f"ckpt_path={path}", *repeated])

    return {
        "resume": words([*_program(), *config_dirs, *config_name], last),
        "eval": words(["lit-loader", "eval", *config_dirs], best),
        "predict": f"{words(['lit-loader', 'predict', *config_dirs], best)} source=path/to/images",
    }


def secret_overrides(checkpoint: str) -> list[str]:
    """Return the overrides that `commands` leave out and a user has to add, with their secrets masked."""
    words = overrides_to_repeat(_overrides(), checkpoint)
    return [masked_override(word) for word in words if masked_override(word) != word]


def _program() -> list[str]:
    """Return the command that started this run, such as ``lit-loader train``, word by word."""
    if Path(sys.argv[0]).absolute().parent == Path(__file__).parent:
        return ["lit-loader", "train"]
    return ["python", sys.argv[0]]


def last_checkpoint(run: Run) -> str | None:
    """Return the newest checkpoint that a run can resume from, or None before the first."""
    paths: list[Path] = []
    for callback in run.trainer.checkpoint_callbacks:
        if isinstance(callback, SigtermCheckpoint):
            paths.append(callback.path)
        elif isinstance(callback, ModelCheckpoint) and callback.monitor is None:
            paths.append(Path(callback.best_model_path))
    files = [path for path in paths if path.is_file()]
    return str(max(files, key=lambda path: path.stat().st_mtime)) if files else None


def _checkpoints(run: Run, *, with_future: bool) -> tuple[str, str] | None:
    """Return the checkpoint to resume from and the best one, or None without any.

    Args:
        run: The run.
        with_future: If True and none is saved, return the paths at which they are going to be.
    """
    folder = run.folder / "checkpoints"
    last = last_checkpoint(run) or str(folder / "last.ckpt")
    best = getattr(run.trainer.checkpoint_callback, "best_model_path", None) or str(folder / "best.ckpt")
    # A path with a protocol is not on this disk.
    files = [path for path in (last, best) if "://" in path or Path(path).exists()]
    if not files:
        return (last, best) if with_future else None
    return files[0], files[-1]


def _relative(path: str, cfg: DictConfig) -> str:
    """Return a path relative to the folder where the run was started, or the path itself outside of it."""
    start = Path((cfg.get("paths") or {}).get("work_dir") or ".").absolute()
    absolute = Path(path).absolute()
    return str(absolute.relative_to(start)) if absolute.is_relative_to(start) else str(absolute)


def _own_configs() -> tuple[list[str], list[str]]:
    """Return the options of the command that name the user's configs: their folder, and the config."""
    if not HydraConfig.initialized():
        return [], []
    hydra = HydraConfig.get()
    folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
    name = hydra.job.config_name
    config_name = [] if name in (None, "train") else [f"--config-name={name}"]
    return [f"--config-dir={folder}" for folder in folders], config_name


def _overrides() -> list[str]:
    if not HydraConfig.initialized():
        return []
    # Iterating over the list would resolve `${oc.env:NAME}` in an override.
    overrides: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return [str(word) for word in overrides]


def _experiment() -> str | None:
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    return choices.get("experiment")


def masked_override(word: str) -> str:
    """Return an override without passwords: ``***`` replaces a value with a secret key, and the login of an address."""
    key, _, value = word.partition("=")
    try:
        parsed = OverridesParser.create().parse_override(word)
        has_secret = parsed.is_sweep_override() or any(_has_secret(name) for name in _keys(key, parsed.value()))
    # Hydra's parser is recursive.
    except (HydraException, RecursionError):
        has_secret = True
    return f"{key}=***" if value and has_secret else _without_logins(word)


def _keys(key: str, value: object) -> Iterator[str]:
    """Yield the key of every value that is text or a number, also of nested values."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _keys(f"{key}.{name}", item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(key, item)
    # A reference to an environment variable contains only its name.
    elif value is not None and not isinstance(value, bool) and not (is_secret_key(key) and "${" in str(value)):
        yield key


def _has_secret(key: str) -> bool:
    if is_secret_key(key.lstrip("+~")):
        return True
    # `accessToken` has the same words as `access_token`.
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.lstrip("+~"))
    return _SECRET.search(words) is not None


def _without_logins(text: str) -> str:
    """Replace user names, passwords and queries of addresses by ``***``."""
    text = re.sub(r"(?<=://)[^/\s]*@", "***@", text)
    return re.sub(r"(://[^\s?]*\?)[^\s'\"]+", r"\1***", text)


def _command_lines(run: Run, checkpoints: tuple[str, str] | None) -> Iterator[str]:
    start = (run.cfg.get("paths") or {}).get("work_dir") or "."
    yield "## Commands"
    yield ""
    if checkpoints is None:
        yield "The run has saved no checkpoint to resume, test or predict with."
        yield ""
    else:
        yield f"In {escape_markdown(str(start))}; `eval` and `predict` use the best checkpoint:"
        yield ""
        yield from _code(commands(run, checkpoints, relative=True).values())
        secrets = secret_overrides(checkpoints[0])
        if secrets:
            yield f"Add to each command, with their values: {escape_markdown(', '.join(secrets))}."
            yield ""
        yield f"{escape_markdown('resume_in_place=true')} continues in this folder."
        yield ""
        launch = read_launch(os.environ)
        if launch is not None:
            yield f"Put {launch.launcher} with its options in front of them on each host, as in this run."
            yield ""
    if HydraConfig.initialized():
        folders, name = _own_configs()
        yield "The command of this run:"
        yield ""
        yield from _code([shell_command([*_program(), *folders, *name, *map(masked_override, _overrides())])])


def _code(lines: Iterable[str]) -> Iterator[str]:
    yield "```bash"
    yield from lines
    yield "```"
    yield ""


def _file_lines(run: Run, checkpoints: tuple[str, str] | None) -> Iterator[str]:
    yield "## Files"
    yield ""
    for path, text in _FILES.items():
        if (run.folder / path).exists():
            yield f"- [{path}]({path}): {text}"
    last, best = checkpoints or ("", "")
    for path, text in {best: "the best checkpoint", last: "the checkpoint to resume from"}.items():
        file = Path(path)
        if file.exists() and file.is_relative_to(run.folder):
            relative = file.relative_to(run.folder).as_posix()
            yield f"- [{escape_markdown(relative)}]({quote(relative)}): {text}"
    yield ""
    if (run.folder / "pictures/class_report.png").exists():
        yield "![classes](pictures/class_report.png)"
        yield ""


def _set_sizes(run: Run) -> Iterator[tuple[str, str]]:
    if not isinstance(run.datamodule, TableDataModule):
        return
    for stage in _STAGES:
        tables = run.datamodule.tables(stage)
        if tables:
            samples = sum(table.num_images for table in tables)
            objects = sum(table.num_objects for table in tables)
            yield f"{stage} set", f"{samples:,} samples, {objects:,} objects"


def _class_rows(run: Run) -> list[tuple[str, ...]]:
    """Return a header, and a row for each class: its objects in each set, and its shares in training batches."""
    if not isinstance(run.datamodule, TableDataModule):
        return []
    counts: dict[str, Any] = {}
    for stage in _STAGES:
        tables = run.datamodule.tables(stage)
        if tables:
            counts[stage] = sum(table.class_counts() for table in tables)
    names = run.datamodule.class_names
    monitor = find_callback(run.trainer, ClassMixMonitor)
    mixes = [] if monitor is None else [mix for mix in monitor.mixes.values() if tuple(mix.class_names) == tuple(names)]
    shares: dict[str, Any] = {}
    for mix in mixes[:1]:
        shares = {"expected share": mix.expected, "share in batches": mix.arrived if mix.counts.any() else None}
        shares = {title: values for title, values in shares.items() if values is not None}
    rows = [("class", *counts, *shares)]
    for row, name in enumerate(names):
        cells = [str(int(column[row])) for column in counts.values()]
        cells += [f"{float(values[row]):.4f}" for values in shares.values()]
        rows.append((str(name), *cells))
    return rows


def _class_lines(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    yield "## Classes"
    yield ""
    yield "Objects of each class in each set:"
    yield ""
    yield from _table(rows[0], rows[1 : _MAX_CLASSES + 1])
    if len(rows) > _MAX_CLASSES + 1:
        yield f"The other {len(rows) - 1 - _MAX_CLASSES} classes are in [class_mix.csv](class_mix.csv)."
        yield ""


def _versions(run: Run) -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        if name in sys.modules:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:  # imported from a folder that is not installed
                versions[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    if torch.version.cuda is not None and torch.cuda.is_available():
        versions["cuda"] = torch.version.cuda
    commit = git_commit(Path((run.cfg.get("paths") or {}).get("work_dir") or "."))
    if commit is not None:
        versions["commit"] = commit
    return versions


def git_commit(folder: Path) -> str | None:
    """Return the commit that is checked out in a folder or in one above it, or None; changed files are not looked for.

    Args:
        folder: A folder in the work tree of a repository.
    """
    try:
        for parent in (folder.absolute(), *folder.absolute().parents):
            git = parent / ".git"
            if git.exists():
                return _head(git)
    except (OSError, ValueError):
        return None
    return None


def _head(git: Path) -> str | None:
    # A further work tree has a file with the path of its folder, whose branches are in the repository's folder.
    if git.is_file():
        git = git.parent / _first_line(git).removeprefix("gitdir: ")
    common = git / _first_line(git / "commondir") if (git / "commondir").is_file() else git
    head = _first_line(git / "HEAD")
    if head.startswith("ref: "):
        name = head.removeprefix("ref: ")
        if not name.startswith("refs/") or ".." in name:
            return None
        if (common / name).is_file():
            head = _first_line(common / name)
        else:
            with (common / "packed-refs").open(errors="replace") as file:
                head = next((line.split()[0] for line in file if line.rstrip("\n").endswith(f" {name}")), "")
    return head if re.fullmatch("[0-9a-f]{40,64}", head) else None


def _first_line(path: Path) -> str:
    with path.open(errors="replace") as file:
        return file.readline(4096).strip()


def _flat(report: Report) -> dict[str, float]:
    """Return the scores of a report by name, with the title of their section from the second section on."""
    return {
        name if number == 0 else f"{title}: {name}": value
        for number, (title, scores) in enumerate(report)
        for name, value in scores.items()
    }


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def _table(header: Sequence[str], rows: Any) -> Iterator[str]:
    """Yield the lines of a table, with escaped cells."""
    for number, row in enumerate([header, *rows]):
        yield f"| {' | '.join(map(escape_markdown, row))} |"
        if number == 0:
            yield f"|{'---|' * len(header)}"
    yield ""


def _write(path: Path, text: str) -> None:
    # The umask applies, so that other users can read the page as they read the logs.
    with new_file(path, mode=0o666) as file:
        file.write(text.encode("utf-8", "surrogateescape"))
