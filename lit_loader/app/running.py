"""Running the app: its words, its ranks, and errors in one line that name the config's keys."""

from __future__ import annotations

import errno
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, get_args

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from lit_loader.app.composition import ConfigError, run_with_hints
from lit_loader.app.composition.checks import accepted
from lit_loader.app.composition.hints import what_is_wrong
from lit_loader.app.composition.stored_overrides import checkpoint_of, override_value, with_words_of_run
from lit_loader.app.log import logged_run
from lit_loader.errors import LitLoaderError, as_argument, message_of
from lit_loader.foundation.escaping import quote_for_hydra
from lit_loader.foundation.signatures import signature_of

__all__ = [
    "FULL_DISK",
    "NOT_WRITABLE",
    "config_errors",
    "in_place",
    "one_job",
    "run",
    "show",
]

FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NOT_WRITABLE = {errno.EACCES, errno.EEXIST, errno.ENOTDIR, errno.EPERM, errno.EROFS}
_RANK_VARIABLES = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE")
_job_has_begun: ContextVar[bool] = ContextVar("job_has_begun", default=False)


def run(main: Callable[[], Any], words: Sequence[str] | None = None) -> None:
    """Run a ``@hydra.main`` function as a program; a mistake ends it with one line and exit code 1.

    ``ckpt_path=FILE`` of a run repeats the words of that run, see `with_words_of_run`. Modules that the config names
    are looked for in the current folder too.

    Args:
        main: The function; the file that it is in runs it when it is started, as Lightning does for further ranks.
        words: The words of the command line, or None for those of this process.
    """
    before, path = list(sys.argv), list(sys.path)
    if words is not None:
        sys.argv = [str(inspect.getsourcefile(inspect.unwrap(main))), *words]
    if sys.path[0] == str(Path(__file__).parent):  # a file of this package was started
        del sys.path[0]
    sys.path.insert(0, str(Path.cwd()))

    def main_as_in_the_run() -> None:
        sys.argv[1:] = with_words_of_run(sys.argv[1:])
        if inspect.unwrap(main).__module__.rpartition(".")[2] not in ("evaluation", "prediction"):
            sys.argv[1:] = in_place(sys.argv[1:])
        _job_has_begun.set(False)
        try:
            main()
        except OSError as error:
            # Before the job Hydra makes its folder and writes the config there; later errors have causes of their own.
            if _job_has_begun.get() or error.errno not in FULL_DISK | NOT_WRITABLE:
                raise
            raise ConfigError(
                f"{error}: the run's folder cannot be made; choose where runs write by paths.log_dir=FOLDER"
            ) from error

    try:
        run_with_hints(main_as_in_the_run)
    finally:
        sys.argv, sys.path[:] = before, path


def show(config_name: str, words: Sequence[str]) -> None:
    """Run a command whose words only show something of its config, as ``--help`` and ``--cfg job`` do.

    Args:
        config_name: The shipped config of the command.
        words: The command line after the name of the command.
    """

    @hydra.main(version_base="1.3", config_path="pkg://lit_loader.conf", config_name=config_name)
    def main(cfg: DictConfig) -> None:
        raise AssertionError(f"{words} run a job")

    run(main, words)


def in_place(words: Sequence[str]) -> list[str]:
    """Add ``hydra.run.dir``, the folder of the checkpoint's run, to words that contain ``resume_in_place=true``.

    Raises:
        ConfigError: If ``ckpt_path`` names no checkpoint of a run, or the command is a sweep.
    """
    if (
        override_value(words, "resume_in_place") is not True
        or override_value(words, "hydra.run.dir") is not None
    ):
        return list(words)
    checkpoint = checkpoint_of(words)
    folder = Path(checkpoint or "").absolute().parent.parent
    if checkpoint is None or not (folder / ".hydra").is_dir() or {"-m", "--multirun"} & {*words}:
        raise ConfigError(
            "resume_in_place=true continues in the folder of one run; give it with "
            "ckpt_path=logs/train/runs/DATE_TIME/checkpoints/last.ckpt and without -m"
        )
    return [*words, f"hydra.run.dir={quote_for_hydra(str(folder))}"]


@contextmanager
def one_job() -> Iterator[None]:
    """Run one job of Hydra's: further ranks run this job and not its sweep, and the next job starts its own.

    NOTE Lightning starts further ranks by ``sys.argv`` and ``hydra.run.dir``. In a sweep these are the sweep's: each
    rank would run all of its jobs. And its variables, which name a process as a rank, would outlive the job: the next
    one would wait for ranks that nobody starts. A run of Weights & Biases would go on in the next job.

    Raises:
        SystemExit: With code 143 after SIGTERM, and 130 after Ctrl-C.
    """
    import torch  # seconds, which help and --cfg need not wait for
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    _job_has_begun.set(True)
    is_of_sweep = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    words, variables = list(sys.argv), {name: os.environ.get(name) for name in _RANK_VARIABLES}
    had_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if is_of_sweep:
        sys.argv[1:] = _words_of_job()
        hydra: Any = HydraConfig.get()  # a DictConfig
        with read_write(hydra):
            hydra.run.dir = hydra.runtime.output_dir
    try:
        with logged_run() if HydraConfig.initialized() else nullcontext():
            yield
    except SIGTERMException as stop:  # Lightning raises it without a code, which would be 0
        raise SystemExit(128 + signal.SIGTERM) from stop
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):  # of which Lightning makes SystemExit(1)
            raise SystemExit(128 + signal.SIGINT) from stop
        raise
    finally:
        sys.argv[:] = words
        wandb: Any = sys.modules.get("wandb")
        if wandb is not None and wandb.run is not None:
            wandb.finish(exit_code=0 if sys.exc_info()[0] is None else 1)
        if torch.distributed.is_available() and torch.distributed.is_initialized() and not had_group:
            torch.distributed.destroy_process_group()
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)


def _words_of_job() -> list[str]:
    """Return the words that run this job of a sweep by itself."""
    hydra = HydraConfig.get()
    words = [f"--config-name={hydra.job.config_name}"]
    for source in hydra.runtime.config_sources:
        if source.provider in ("main", "command-line"):
            option = "--config-path" if source.provider == "main" else "--config-dir"
            at = source.path if source.schema == "file" else f"{source.schema}://{source.path}"
            words.append(f"{option}={at}")
    of_sweep = re.compile(r"[+~]*hydra[./](mode|sweep|sweeper|launcher)\b")
    own = [word for word in hydra.overrides.hydra if not of_sweep.match(word)]
    return [*words, *hydra.overrides.task, *own, "hydra.mode=RUN"]


@contextmanager
def config_errors(cfg: DictConfig, *, data_only: bool = False, node: str | None = None) -> Iterator[None]:
    """Raise what refuses a setting or the data as an error that names the config's keys.

    Args:
        cfg: The config.
        data_only: Leave errors of other kinds as they are: while a model runs they may be defects of it.
        node: Where the settings in question are, such as ``predict``, or None for any of the groups.

    Raises:
        ConfigError: For a ValueError, TypeError, OSError or ImportError.
        LitLoaderError: For an error in the data.
    """
    write = partial(_as_override, cfg=cfg, first_node=node)
    try:
        yield
    except ConfigError:
        raise
    except LitLoaderError as error:
        raise LitLoaderError(error.text(write) + _names_of_files(error, cfg)) from error
    except HydraException as error:
        raise ConfigError(what_is_wrong(error, write)) from error
    except (ValueError, TypeError, OSError, ImportError) as error:
        if data_only:
            raise
        raise ConfigError(message_of(error, write).removeprefix("+")) from error


def _names_of_files(error: LitLoaderError, cfg: DictConfig) -> str:
    """Return where a config names what a data set is read from, if it is not there."""
    train = OmegaConf.select(cfg, "dataset.train")
    if train is None or "No such file" not in str(error):
        return ""
    return f"; dataset.train={train}, dataset.val and dataset.test name what is read below dataset.root"


def _as_override(name: str, value: Any, *, cfg: DictConfig, first_node: str | None = None) -> str:
    """Return a setting as an override of a config, such as ``datamodule.masks=false``; as an argument if it has none.

    Args:
        name: The argument; ``policy.NAME`` is a field of a `ReadPolicy`.
        value: The value, or ``...`` if the reader has to choose it.
        cfg: The config.
        first_node: Where the key is looked for first, or None for the order of the groups.
    """
    from lit_loader.app.commands.next_command import (
        hydra_value,  # numpy and pandas, which only an error needs
    )

    owner, _, problem = name.partition(".")
    if owner == "policy":
        return f"dataset.policy.{problem}={_actions_for(problem)}"
    key = _key_of(name, cfg, first_node)
    if key is None:
        return as_argument(name, value)
    return f"{key}={'VALUE' if value is ... else hydra_value(value)}"


def _actions_for(problem: str) -> str:
    from lit_loader.annotations.formats import ReadPolicy

    policy = signature_of(ReadPolicy)
    actions = [action for action in get_args(policy and policy.types.get(problem)) if action != "raise"]
    return " or ".join(actions) or "ACTION"


def _key_of(name: str, cfg: DictConfig, first_node: str | None) -> str | None:
    """Return where a config has a setting of this name below its groups, or can have it, or None if it has none."""
    from lit_loader.annotations.formats import readers
    from lit_loader.annotations.formats.registry import format_options

    if name in cfg:
        return name
    dataset = cfg.get("dataset") or {}
    format = dataset.get("format") or ("voc" if str(dataset.get("_target_")).endswith(".VocSource") else None)
    options = format_options(readers()[format]) if format in readers() else {}
    for path in (
        *([first_node] if first_node else []),
        "dataset",
        "workers",
        "datamodule",
        "datamodule.reading",
        "datamodule.train_transforms",
        "model",
        "model.model",
        "sampler",
    ):
        node, parent = OmegaConf.select(cfg, path), OmegaConf.select(cfg, path.rpartition(".")[0] or path)
        if isinstance(node, DictConfig) and name in node:
            if OmegaConf.is_interpolation(node, name):
                continue  # the node that it points to has the value
            return f"{path}.{name}"
        if path == "dataset" and name in options:
            return f"dataset.options.{name}"
        signature = accepted(path, node, parent) if isinstance(node, DictConfig) else None
        if signature is not None and name in signature.types:
            return f"+{path}.{name}"
    return None
