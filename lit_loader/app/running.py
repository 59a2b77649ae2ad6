"""Run the app: its command line, its ranks, and one-line errors that name keys of the config."""

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
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_args

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from lit_loader.app.composition import ConfigError, run_with_hints, worker_override
from lit_loader.app.composition.checks import accepted
from lit_loader.app.composition.hints import explain
from lit_loader.app.composition.stored_overrides import checkpoint_of, override_value, replay_overrides
from lit_loader.app.launch import connected, named_run, read_launch
from lit_loader.app.log import logged_run
from lit_loader.app.secrets import hide_in_run_folder
from lit_loader.app.sweep import print_unfinished_sweep
from lit_loader.errors import LitLoaderError, SettingText, as_argument, message_of
from lit_loader.foundation.escaping import has_hydra_keys, hydra_value, quote_for_hydra
from lit_loader.foundation.signatures import signature_of

__all__ = ["FULL_DISK", "NOT_WRITABLE", "config_errors", "in_place", "one_job", "run", "setting_override", "show"]

FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NOT_WRITABLE = {errno.EACCES, errno.EEXIST, errno.ENOTDIR, errno.EPERM, errno.EROFS}
_RANK_VARIABLES = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE")
_job_started: ContextVar[bool] = ContextVar("job_started", default=False)


def run(
    main: Callable[[], Any], words: Sequence[str] | None = None, *, command: str = "train", runs_job: bool = True
) -> None:
    """Run a ``@hydra.main`` function as a program; a mistake ends it with one line and exit code 1.

    ``ckpt_path=FILE`` of a run replays the overrides of that run, see `replay_overrides`. The config may name modules
    in the current folder. All ranks of torchrun or srun have the same run folder, see `named_run`.

    Args:
        main: The function. Its file must call it when started as a script, since Lightning starts further ranks so.
        words: The command line without the program, or None for the command line of this process.
        command: ``"train"``, ``"eval"`` or ``"predict"``; its stage decides which transforms of a run are replayed.
        runs_job: False if the command only shows its config, so that ranks need not agree on anything.
    """
    original_argv = list(sys.argv)
    original_path = list(sys.path)
    if words is not None:
        # Lightning starts the file sys.argv[0] for further ranks; the program `lit-loader` would need its subcommand.
        sys.argv = [str(inspect.getsourcefile(inspect.unwrap(main))), *words]
    # A rank starts with a file of this package, so Python puts this folder first: `import log` would find ours.
    if sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]
    # A console script, unlike `python -m`, does not put the current folder on the path, and neither does Hydra.
    sys.path.insert(0, str(Path.cwd()))

    def main_with_replayed_overrides() -> None:
        sys.argv[1:] = replay_overrides(sys.argv[1:], command)
        if command == "train":
            sys.argv[1:] = in_place(sys.argv[1:])
        _job_started.set(False)
        try:
            main()
        except OSError as error:
            # Before the job, Hydra creates the run's folder and writes the config there. Later errors are not about it.
            if _job_started.get() or error.errno not in FULL_DISK | NOT_WRITABLE:
                raise
            raise ConfigError(
                f"{error}: the run's folder cannot be created; choose another place with paths.log_dir=FOLDER"
            ) from error

    @contextmanager
    def ranks() -> Iterator[None]:
        launch = read_launch(os.environ)
        with named_run(launch):
            if launch is not None and launch.rank > 0:
                # Rank 0 writes the config; several hosts would write the same file of a shared disk.
                sys.argv.append("hydra.output_subdir=null")
            yield

    try:
        run_with_hints(main_with_replayed_overrides, ranks() if runs_job else None, config_name=command)
    finally:
        print_unfinished_sweep()
        sys.argv = original_argv
        sys.path[:] = original_path


def show(config_name: str, words: Sequence[str]) -> None:
    """Run a command that only shows its config, as ``--help`` and ``--cfg job`` do.

    Args:
        config_name: The shipped config of the command.
        words: The command line after the name of the command.
    """

    # The command's own main function is not imported, since its module needs seconds to import torch.
    @hydra.main(version_base="1.3", config_path="pkg://lit_loader.conf", config_name=config_name)
    def main(cfg: DictConfig) -> None:
        raise AssertionError(f"{words} run a job")

    run(main, words, command=config_name, runs_job=False)


def in_place(words: Sequence[str]) -> list[str]:
    """For ``resume_in_place=true``, add ``hydra.run.dir``, the folder of the checkpoint's run, to the overrides.

    Raises:
        ConfigError: If ``ckpt_path`` names no checkpoint of a run, or the command is a sweep.
    """
    if override_value(words, "resume_in_place") is not True or override_value(words, "hydra.run.dir") is not None:
        return list(words)
    checkpoint = checkpoint_of(words)
    folder = Path(checkpoint or "").absolute().parent.parent
    if checkpoint is None or not (folder / ".hydra").is_dir() or {"-m", "--multirun"} & {*words}:
        raise ConfigError(
            "resume_in_place=true continues in the folder of one run; pass it with "
            "ckpt_path=logs/train/runs/DATE_TIME/checkpoints/last.ckpt and without -m"
        )
    return [*words, f"hydra.run.dir={quote_for_hydra(str(folder))}"]


@contextmanager
def one_job(cfg: DictConfig) -> Iterator[None]:
    """Run one job of Hydra: further ranks run this job instead of its sweep, and nothing leaks into the next job.

    Args:
        cfg: The config of the job; its credentials are masked in the files that Hydra has written.

    Raises:
        ConfigError: If several ranks would each run the whole sweep.
        SystemExit: With code 143 after SIGTERM, and 130 after Ctrl-C.
    """
    # Importing torch takes seconds, which --help and --cfg should not wait for.
    import torch
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    _job_started.set(True)
    hide_in_run_folder(cfg)
    in_sweep = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    if in_sweep:
        _check_sweep()
    original_argv = list(sys.argv)
    variables = {name: os.environ.get(name) for name in _RANK_VARIABLES}
    had_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if in_sweep:
        # Lightning starts further ranks by sys.argv and hydra.run.dir. In a sweep both are the sweep's, so each rank
        # would run all of its jobs.
        sys.argv[1:] = _job_words()
        hydra: Any = HydraConfig.get()  # a DictConfig
        with read_write(hydra):
            hydra.run.dir = hydra.runtime.output_dir
    try:
        with connected(read_launch(os.environ)), logged_run() if HydraConfig.initialized() else nullcontext():
            yield
    except SIGTERMException as stop:
        # Lightning raises it without an exit code, and the shell would see success.
        raise SystemExit(128 + signal.SIGTERM) from stop
    except SystemExit as stop:
        # Lightning turns Ctrl-C into SystemExit(1).
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise SystemExit(128 + signal.SIGINT) from stop
        raise
    finally:
        sys.argv[:] = original_argv
        # Otherwise the run of Weights & Biases would continue in the next job.
        wandb: Any = sys.modules.get("wandb")
        if wandb is not None and wandb.run is not None:
            wandb.finish(exit_code=0 if sys.exc_info()[0] is None else 1)
        if torch.distributed.is_available() and torch.distributed.is_initialized() and not had_group:
            torch.distributed.destroy_process_group()
        # Lightning marks this process as a rank. The next job would wait for other ranks, which no longer exist.
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)


def _check_sweep() -> None:
    """Refuse a sweep that every rank of a launcher would run; tasks of submitit run one job of a sweep together.

    Raises:
        ConfigError: If torchrun or srun started several ranks for a sweep.
    """
    launch = read_launch(os.environ)
    if launch is not None and launch.world_size > 1 and "SUBMITIT_EXECUTOR" not in os.environ:
        raise ConfigError(
            f"a sweep (-m) in {launch.world_size} ranks of {launch.launcher}: each of them would run all jobs; start "
            "one command for each job, or start the sweep without a launcher and pass hydra/launcher=submitit_slurm"
        )


def _job_words() -> list[str]:
    """Return the command line that runs only this job of a sweep."""
    hydra = HydraConfig.get()
    words = [f"--config-name={hydra.job.config_name}"]
    for source in hydra.runtime.config_sources:
        if source.provider in ("main", "command-line"):
            option = "--config-path" if source.provider == "main" else "--config-dir"
            location = source.path if source.schema == "file" else f"{source.schema}://{source.path}"
            words.append(f"{option}={location}")
    sweep_key = re.compile(r"[+~]*hydra[./](mode|sweep|sweeper|launcher)\b")
    hydra_overrides = [word for word in hydra.overrides.hydra if not sweep_key.match(word)]
    return [*words, *hydra.overrides.task, *hydra_overrides, "hydra.mode=RUN"]


@contextmanager
def config_errors(cfg: DictConfig, *, data_only: bool = False, node: str | None = None) -> Iterator[None]:
    """Turn errors about a setting or the data into errors that name keys of the config.

    Args:
        cfg: The config.
        data_only: Let other errors pass: while a model runs, a ValueError may be a bug of the model.
        node: Path of the node that holds the settings, such as ``predict``, or None for any group.

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
        message = error.text(write)
        train = OmegaConf.select(cfg, "dataset.train")
        if train is not None and "No such file" in message:
            message += f"; dataset.train={train}, dataset.val and dataset.test name files under dataset.root"
        raise LitLoaderError(message) from error
    except HydraException as error:
        raise ConfigError(explain(error, lambda path: partial(write, first_node=path))) from error
    except (ValueError, TypeError, OSError, ImportError) as error:
        if data_only:
            raise
        raise ConfigError(message_of(error, write).removeprefix("+")) from error


def setting_override(cfg: DictConfig) -> SettingText:
    """Return a function that writes settings of the data module, of its workers and its reading as overrides."""
    # This imports torch, which --help and --cfg should not wait for.
    from lit_loader.datamodules import WorkerSettings

    worker_settings = {field.name for field in fields(WorkerSettings)}

    def write(name: str, value: Any) -> str:
        if name in worker_settings:
            return worker_override(cfg, name, value)
        return _as_override(name, value, cfg=cfg, first_node="datamodule")

    return write


def _as_override(name: str, value: Any, *, cfg: DictConfig, first_node: str | None = None) -> str:
    """Return a setting as an override of a config, such as ``datamodule.masks=false``.

    A setting without a key in the config is written as a Python argument.

    Args:
        name: The argument; ``policy.NAME`` is a field of a `ReadPolicy`.
        value: The value, or ``...`` if the reader has to choose it.
        cfg: The config.
        first_node: Path of the node to search first, or None for the order of the groups.
    """
    # This imports numpy and pandas, which only an error needs.
    from lit_loader.annotations.formats import ReadPolicy

    owner, _, problem = name.partition(".")
    if owner == "policy":
        policy = signature_of(ReadPolicy)
        actions = [action for action in get_args(policy and policy.types.get(problem)) if action != "raise"]
        return f"dataset.policy.{problem}={' or '.join(actions) or 'ACTION'}"
    # Options of a store are in no config.
    key = f"dataset.{name}" if owner == "storage" and problem else _key_of(name, cfg, first_node)
    if key is None:
        return as_argument(name, value)
    if not has_hydra_keys(value):
        return f"{key}: {hydra_value(value)} in a YAML file"
    return f"{key}={'VALUE' if value is ... else hydra_value(value)}"


def _key_of(name: str, cfg: DictConfig, first_node: str | None) -> str | None:
    """Return the key of a setting in the groups of a config, with ``+`` if it is not set yet, or None without a key."""
    from lit_loader.annotations.formats import readers
    from lit_loader.annotations.formats.registry import format_options

    dataset = cfg.get("dataset") or {}
    format = dataset.get("format") or ("voc" if str(dataset.get("_target_")).endswith(".VocSource") else None)
    options = format_options(readers()[format]) if format in readers() else {}
    interpolated = None
    # A data module takes num_workers itself, too, but configs keep it with the other worker settings.
    nested = ["workers", "datamodule.workers", "datamodule.reading"]
    first_paths = [] if first_node is None else [*(nested if first_node == "datamodule" else []), first_node]
    other_paths = ["dataset", *nested, "datamodule", "datamodule.train_transforms", "model", "model.model", "sampler"]
    for path in [*first_paths, *other_paths]:
        node = OmegaConf.select(cfg, path)
        parent = OmegaConf.select(cfg, path.rpartition(".")[0] or path)
        if isinstance(node, DictConfig) and name in node:
            if OmegaConf.is_interpolation(node, name):
                # The setting belongs to the node that the interpolation points to, if that has the same name.
                raw_values: Any = OmegaConf.to_container(node, resolve=False)
                if interpolated is None and raw_values[name] != f"${{{name}}}":
                    interpolated = f"{path}.{name}"
                continue
            return f"{path}.{name}"
        signature = accepted(path, node, parent) if isinstance(node, DictConfig) else None
        if signature is not None and name in signature.types:
            return f"+{path}.{name}"
    # Options come last, because some have the names of settings of the data module. The root has keys such as `test`,
    # which are stages there and files of a dataset elsewhere.
    if name in options:
        return f"dataset.options.{name}"
    return interpolated or (name if name in cfg else None)
