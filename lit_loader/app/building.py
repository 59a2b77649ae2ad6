"""Build the parts of a run from its config, in the order in which they depend on each other."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from pydoc import locate
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Checkpoint, LearningRateMonitor
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.syntax import Syntax
from torch.nn.parameter import is_lazy

from lit_loader.app.composition import ConfigError, validate
from lit_loader.app.composition.hints import shipped_targets
from lit_loader.app.composition.stored_overrides import check_checkpoint
from lit_loader.app.joining import join_ranks
from lit_loader.app.launch import check_trainer, read_launch
from lit_loader.app.running import config_errors, setting_override
from lit_loader.app.secrets import masked
from lit_loader.callbacks import DataMonitor
from lit_loader.datamodules import DetectionDataModule, TableDataModule
from lit_loader.foundation.escaping import escape_interpolations
from lit_loader.recipes import DetectionTask, check_model_fits, model_kwargs_from_datamodule

__all__ = [
    "Run",
    "build_model",
    "build_run",
    "checkpoint_path",
    "console",
    "loading",
    "parameter_sizes",
    "read_checkpoint",
]

# Formats whose files have a class per image and never a box: the box of every object is the whole image.
_FORMATS_WITHOUT_BOXES = frozenset({"class_list", "image_folder"})

# Arguments of a model that choose code, a download or a machine's compiler; no checkpoint of a `Task` holds them.
_NEVER_FROM_CHECKPOINT = frozenset({"compile", "loss", "model", "optimizer", "scheduler", "weights"})


@dataclass(frozen=True, kw_only=True)
class Run:
    """The objects of one run, built from its config.

    Attributes:
        cfg: The config.
        folder: The folder that the run writes to.
        datamodule: The data module, with its data prepared.
        model: The task, or any LightningModule.
        trainer: The trainer, with the callbacks and loggers of the config's groups.
    """

    cfg: DictConfig
    folder: Path
    datamodule: LightningDataModule
    model: LightningModule
    trainer: Trainer


def console() -> Console:
    """Return the console of rank 0; the consoles of other ranks are quiet."""
    # Rich takes text in brackets for markup, and names from files may contain brackets.
    return Console(width=100, quiet=getattr(rank_zero_only, "rank", 0) != 0, markup=False)


def build_run(
    cfg: DictConfig, *, checkpoint: str | None = None, callbacks: tuple[Callback, ...] = (), needs_names: bool = True
) -> Run:
    """Seed, prepare the data, and build the model and the trainer.

    Args:
        cfg: A config as ``conf/train.yaml`` composes it.
        checkpoint: Path of a checkpoint to test or predict with: the model is built with the names in it and without
            ``weights``. None takes the names from the data.
        callbacks: Additional callbacks of the trainer.
        needs_names: If True, the data must have the same names as the checkpoint.

    Raises:
        ConfigError: If a setting is refused.
        LitLoaderError: If the data cannot be used, or another rank has failed.
    """
    with config_errors(cfg):
        models = {name: locate(target) for name, target in shipped_targets("model").items()}
        task: Any = locate(cfg.model["_target_"])
        check_model_fits(locate(cfg.datamodule["_target_"]), task, models)
        if isinstance(task, type) and issubclass(task, DetectionTask):
            task.check_oriented(cfg.datamodule.get("oriented"))
    if needs_names:
        _check_labels(cfg)
    # The checks above come first, since their messages say more than a mismatch of signatures.
    validate(cfg)
    accelerator = cfg.trainer.get("accelerator")
    if accelerator in ("gpu", "cuda") and not torch.accelerator.is_available():
        raise ConfigError(
            f"trainer.accelerator={accelerator}: torch finds none here; choose trainer=cpu, or install torch for it"
        )
    launch = read_launch(os.environ)
    check_trainer(launch, cfg.trainer, os.environ)
    _set_process(cfg)
    with config_errors(cfg):
        # `_convert_` makes plain lists and dicts of the config's: constructors check types, and workers pickle them.
        datamodule: LightningDataModule = instantiate(cfg.datamodule, _convert_="all")
        # The model needs the names of classes, so the data is prepared before it is built.
        datamodule.prepare_data()
        stored_names = {} if checkpoint is None else _hyperparameters(read_checkpoint(checkpoint))
        # Trainer.test and Trainer.predict load the checkpoint's weights; others would be downloaded for nothing.
        names = {**stored_names, "weights": None} if stored_names else {}
        if isinstance(datamodule, TableDataModule):
            if datamodule.first_table(("train", "val", "test")) is not None:
                console().print(datamodule.summary(), markup=False, highlight=False)
            if needs_names or not stored_names:
                data_names = model_kwargs_from_datamodule(datamodule)
                _check_names(stored_names, data_names)
                names = {**data_names, **names}
        model = _build_model(cfg, names)
        trainer = _build_trainer(cfg, model, callbacks)
    run = Run(cfg=cfg, folder=Path(cfg.paths.output_dir), datamodule=datamodule, model=model, trainer=trainer)
    if launch is not None and launch.world_size > 1:
        for line in join_ranks(launch, trainer, datamodule, run.folder):
            console().print(line, soft_wrap=True, highlight=False)
    _log_hyperparameters(run)
    return run


def _set_process(cfg: DictConfig) -> None:
    """Apply the settings of a config to this process: warnings, seed and threads; print the config if asked for."""
    # It logs several lines in every validation.
    logging.getLogger("faster_coco_eval").setLevel(logging.WARNING)
    extras = cfg.get("extras") or {}
    if extras.get("ignore_warnings"):
        warnings.simplefilter("ignore")
    if extras.get("print_config"):
        text = OmegaConf.to_yaml(OmegaConf.create(masked(OmegaConf.to_container(cfg, resolve=True))))
        console().print(Syntax(text, "yaml", background_color="default"))
    if cfg.get("seed") is not None:
        seed_everything(cfg.seed, verbose=False)
    if cfg.get("num_threads"):
        torch.set_num_threads(cfg.num_threads)


def checkpoint_path(cfg: DictConfig, *, is_needed: bool = False) -> str | None:
    """Return the path of the checkpoint that a config names, or None.

    Args:
        cfg: The config.
        is_needed: If True, refuse a config without a checkpoint.

    Raises:
        ConfigError: If the file does not exist, or a needed checkpoint is missing.
    """
    path: str | None = cfg.get("ckpt_path")
    if is_needed and cfg.get("resume_in_place"):
        raise ConfigError("resume_in_place=true works only with train; remove it")
    if path is None and is_needed:
        raise ConfigError(
            "ckpt_path is missing; pass ckpt_path=FILE, a checkpoint of a run such as "
            "logs/train/runs/DATE_TIME/checkpoints/best.ckpt"
        )
    if path is not None:
        check_checkpoint(path)
    return path


@contextmanager
def loading(cfg: DictConfig) -> Iterator[None]:
    """Run a test or a prediction, with errors in the data as in `config_errors`."""
    with config_errors(cfg, data_only=True), warnings.catch_warnings():
        # Checkpoint callbacks warn when they load their state, but without a fit they save nothing.
        warnings.filterwarnings("ignore", "The dirpath has changed")
        yield


def read_checkpoint(path: str, *, resumes: bool = False) -> dict[str, Any]:
    """Return the content of a checkpoint, its tensors memory-mapped; empty if Lightning looks the checkpoint up.

    Args:
        path: The file. The folder of a sharded checkpoint and Lightning's own words are left to Lightning.
        resumes: If True, the checkpoint must hold the state of a fit as well as weights.

    Raises:
        ConfigError: If the file is not a Lightning checkpoint of tensors and plain values, or a fit cannot resume
            from it.
    """
    if not Path(path).is_file():
        return {}
    # Mapped, since only a few plain values are used here; Lightning reads the tensors later.
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        # pickle, zipfile and torch raise a dozen types for a damaged or hostile file.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"ckpt_path={path!r} cannot be read as a checkpoint of tensors and plain values: {reason}"
        ) from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), Mapping):
        raise ConfigError(
            f"ckpt_path={path!r} is not a Lightning checkpoint: it has no state_dict; to start from its weights, pass "
            f"model.weights={path}"
        )
    missing = [name for name in ("epoch", "global_step", "loops", "optimizer_states") if name not in checkpoint]
    if resumes and missing:
        raise ConfigError(
            f"ckpt_path={path!r} holds only weights, without {', '.join(missing)}: a fit cannot resume from it; to "
            f"start from its weights, pass model.weights={path}"
        )
    return checkpoint


def _hyperparameters(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's arguments that a checkpoint holds, without those that a file must not choose."""
    arguments = checkpoint.get("hyper_parameters")
    if not isinstance(arguments, Mapping):
        return {}
    return {str(name): value for name, value in arguments.items() if name not in _NEVER_FROM_CHECKPOINT}


def build_model(cfg: DictConfig, datamodule: LightningDataModule) -> LightningModule:
    """Build the model of a config with the names of the data, and without the weights that a training starts from.

    Args:
        cfg: The config.
        datamodule: The data module, with its data prepared.
    """
    names = model_kwargs_from_datamodule(datamodule) if isinstance(datamodule, TableDataModule) else {}
    return _build_model(cfg, {**names, "weights": None})


def _build_model(cfg: DictConfig, names: Mapping[str, Any]) -> LightningModule:
    """Build the model of a config with arguments from files.

    Only the config passes through Hydra. From a checkpoint or a dataset, a mapping with ``_target_`` or a string with
    ``${...}`` reaches the constructor as a plain argument.

    Raises:
        InstantiationException: If the constructor refuses its arguments.
    """
    constructor = instantiate(cfg.model, _partial_=True, _convert_="all")
    parameters = signature(get_object(cfg.model["_target_"])).parameters
    is_open = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    # Arguments in the config win, except for `weights`, since a checkpoint brings its own.
    arguments = {
        name: value
        for name, value in names.items()
        if (is_open or name in parameters) and (name not in cfg.model or name == "weights")
    }
    try:
        model: LightningModule = constructor(**arguments)
    except Exception as error:
        # The same error as `instantiate` raises, so that it is explained in the same way.
        target = cfg.model["_target_"]
        raise InstantiationException(f"Error in call to target {target!r}:\n{error!r}\nfull_key: model") from error
    return model


def _check_names(stored_names: Mapping[str, Any], data_names: Mapping[str, Any]) -> None:
    """Refuse data whose labels have other meanings than in the training data of a checkpoint."""
    for key in ("class_names", "keypoint_names", "attributes"):
        stored = stored_names.get(key)
        if stored is not None and key in data_names and data_names[key] != stored:
            remedy = "; pass dataset.class_names=[...] in the checkpoint's order" if key == "class_names" else ""
            raise ConfigError(
                f"{key} of the checkpoint are {stored}, and of the data {data_names[key]}: labels would have "
                f"different meanings{remedy}"
            )


def _check_labels(cfg: DictConfig) -> None:
    """Refuse a detector for a format without boxes, and a model of masks for data without them.

    This comes before the data is read, which may take minutes.
    """
    format_name = (cfg.get("dataset") or {}).get("format")
    datamodule: Any = locate(cfg.datamodule["_target_"])
    # Without boxes, each whole image would be an object.
    is_detector = isinstance(datamodule, type) and issubclass(datamodule, DetectionDataModule)
    if is_detector and format_name in _FORMATS_WITHOUT_BOXES:
        raise ConfigError(
            f"dataset.format={format_name} has a class per image but no boxes, and datamodule is a "
            f"{datamodule.__name__}, which needs boxes; did you mean experiment=classification?"
        )
    if cfg.model.get("masks") is True and cfg.datamodule.get("masks") is False:
        raise ConfigError(
            "model.masks=true, and datamodule.masks=false: targets would have no masks; pass datamodule.masks=true, or "
            "choose a model without masks, such as model=fasterrcnn_resnet50_fpn_v2"
        )


def _build_trainer(cfg: DictConfig, model: LightningModule, extra_callbacks: tuple[Callback, ...]) -> Trainer:
    """Build the trainer with the loggers and callbacks of the groups; keys of ``trainer`` itself win."""
    settings = cfg.trainer
    loggers: list[Logger] = [instantiate(node, _convert_="all") for node in _targets(cfg.get("logger"))]
    arguments: dict[str, Any] = {} if "logger" in settings else {"logger": loggers or False}
    has_logger = settings.logger not in (None, False) if "logger" in settings else bool(loggers)
    callbacks = [
        instantiate(node, **_resolve_auto(node, model), _convert_="all") for node in _targets(cfg.get("callbacks"))
    ]
    # Lightning raises for a callback that writes to a logger or a checkpoint that the trainer does not have.
    unusable: list[type[Callback]] = []
    if not has_logger or settings.get("fast_dev_run"):
        unusable.append(LearningRateMonitor)
    if settings.get("enable_checkpointing") is False:
        unusable.append(Checkpoint)
    # Filtered by class after they are built, since a config names any subclass by its path.
    callbacks = [callback for callback in callbacks if not isinstance(callback, tuple(unusable))]
    listed_callbacks = instantiate(settings.callbacks, _convert_="all") if settings.get("callbacks") else []
    arguments["callbacks"] = [*listed_callbacks, *callbacks, *extra_callbacks]
    for callback in arguments["callbacks"]:
        if isinstance(callback, DataMonitor):
            callback.setting_text = setting_override(cfg)
    trainer: Trainer = instantiate(settings, **arguments, _convert_="all", _recursive_=False)
    return trainer


def _targets(group: DictConfig | None) -> Iterator[DictConfig]:
    """Yield the nodes of a group that have a ``_target_``; a command switches a node off by setting it to null."""
    for value in (group or {}).values():
        if isinstance(value, DictConfig) and "_target_" in value:
            yield value


def _resolve_auto(callback: DictConfig, model: LightningModule) -> dict[str, Any]:
    """Return the metric of the task, and its mode, for the arguments ``monitor`` and ``mode`` that are ``auto``.

    Raises:
        ConfigError: If the model has no metric to monitor.
    """
    attributes = {"monitor": "monitor", "mode": "monitor_mode"}
    auto_arguments = [name for name in attributes if callback.get(name) == "auto"]
    if auto_arguments and not isinstance(getattr(model, "monitor", None), str):
        raise ConfigError(
            f"{callback['_target_']} has monitor=auto, and a {type(model).__name__} has no attribute `monitor`; name a "
            "metric that it logs"
        )
    return {name: getattr(model, attributes[name]) for name in auto_arguments}


def parameter_sizes(model: LightningModule) -> tuple[int, int]:
    """Return the numbers of trainable and of frozen parameters, without those that have no size before a batch."""
    parameters = [parameter for parameter in model.parameters() if not is_lazy(parameter)]
    trainable = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return trainable, sum(parameter.numel() for parameter in parameters) - trainable


@rank_zero_only
def _log_hyperparameters(run: Run) -> None:
    """Log the config and the number of parameters of the model to every logger."""
    if not run.trainer.loggers:
        return
    trainable, frozen = parameter_sizes(run.model)
    sizes = {"total": trainable + frozen, "trainable": trainable}
    config: Any = OmegaConf.to_container(run.cfg, resolve=True, throw_on_missing=False)
    class_names = getattr(run.datamodule, "class_names", None)
    hyperparameters = {**masked(config), "num_parameters": sizes}
    if class_names is not None:
        # Loggers write YAML files that Lightning reads through OmegaConf, which would resolve `${...}` in a name.
        hyperparameters["class_names"] = [escape_interpolations(str(name)) for name in class_names]
    for logger in run.trainer.loggers:
        logger.log_hyperparams(hyperparameters)
