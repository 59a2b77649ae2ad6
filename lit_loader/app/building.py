"""The parts of a run, built from its config in the order in which they need each other."""

from __future__ import annotations

import logging
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

from lit_loader.app.composition import ConfigError, validate
from lit_loader.app.composition.hints import shipped_targets
from lit_loader.app.composition.stored_overrides import check_checkpoint
from lit_loader.app.running import config_errors
from lit_loader.datamodules import DetectionDataModule, TableDataModule
from lit_loader.foundation.escaping import escape_interpolations
from lit_loader.recipes import check_model_fits, model_kwargs_from_datamodule

__all__ = ["Run", "build_run", "checkpoint_path", "console", "loading", "read_checkpoint"]

# Formats whose files have a class per image and never a box: the box of every object is the whole image.
_FORMATS_WITHOUT_BOXES = frozenset({"class_list", "image_folder"})

# Arguments of a model that choose code, a download or a machine's compiler; no checkpoint of a `Task` holds them.
_NEVER_FROM_CHECKPOINT = frozenset({"compile", "loss", "model", "optimizer", "scheduler", "weights"})


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a config describes.

    Attributes:
        cfg: The config.
        folder: Where the run writes.
        datamodule: Its data, prepared.
        model: The task, or any LightningModule.
        trainer: With the callbacks and loggers of the config's groups.
    """

    cfg: DictConfig
    folder: Path
    datamodule: LightningDataModule
    model: LightningModule
    trainer: Trainer


def console() -> Console:
    """Return where rank 0 prints; text in brackets is text, as names from files may have it."""
    return Console(width=100, quiet=getattr(rank_zero_only, "rank", 0) != 0, markup=False)


def build_run(
    cfg: DictConfig,
    *,
    checkpoint: str | None = None,
    callbacks: tuple[Callback, ...] = (),
    needs_names: bool = True,
) -> Run:
    """Seed, prepare the data, and build the model and the trainer.

    Args:
        cfg: A config as ``conf/train.yaml`` composes it.
        checkpoint: One that is tested or predicts: the model is built with the names that it holds and without
            ``weights``, or None for a model whose names follow from the data.
        callbacks: Further callbacks.
        needs_names: Whether the data must have the names of the checkpoint.

    Raises:
        ConfigError: If a setting is refused.
        LitLoaderError: If the data cannot be used.
    """
    with config_errors(cfg):
        _check_task(cfg)
    if needs_names:
        _check_boxes(cfg)
        _check_masks(cfg)
    validate(cfg)
    accelerator = cfg.trainer.get("accelerator")
    if accelerator in ("gpu", "cuda") and not torch.accelerator.is_available():
        raise ConfigError(
            f"trainer.accelerator={accelerator}: torch finds none here; choose trainer=cpu, or a build of torch for it"
        )
    logging.getLogger("faster_coco_eval").setLevel(logging.WARNING)
    extras = cfg.get("extras") or {}
    if extras.get("ignore_warnings"):
        warnings.simplefilter("ignore")
    if extras.get("print_config"):
        text = OmegaConf.to_yaml(cfg, resolve=True)
        console().print(Syntax(text, "yaml", background_color="default"))
    if cfg.get("seed") is not None:
        seed_everything(cfg.seed, verbose=False)
    if cfg.get("num_threads"):
        torch.set_num_threads(cfg.num_threads)
    with config_errors(cfg):
        datamodule: LightningDataModule = instantiate(cfg.datamodule, _convert_="all")
        datamodule.prepare_data()
        held = {} if checkpoint is None else _hyperparameters(read_checkpoint(checkpoint))
        names = {**held, "weights": None} if held else {}
        if isinstance(datamodule, TableDataModule):
            if datamodule.first_table(("train", "val", "test")) is not None:
                console().print(datamodule.summary(), markup=False, highlight=False)
            if needs_names or not held:
                found = model_kwargs_from_datamodule(datamodule)
                _check_names(held, found)
                names = {**found, **names}
        model = _build_model(cfg, names)
        trainer = _trainer(cfg, model, callbacks)
    run = Run(cfg=cfg, folder=Path(cfg.paths.output_dir), datamodule=datamodule, model=model, trainer=trainer)
    _log_hyperparameters(run)
    return run


def checkpoint_path(cfg: DictConfig, *, is_needed: bool = False) -> str | None:
    """Return the checkpoint of a config.

    Args:
        cfg: The config.
        is_needed: Whether there must be one.

    Raises:
        ConfigError: If the file does not exist, or is not given where it is needed.
    """
    path: str | None = cfg.get("ckpt_path")
    if is_needed and cfg.get("resume_in_place"):
        raise ConfigError("resume_in_place=true is of training alone; leave it out")
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
    """Run a test or a prediction: errors in the data as `config_errors`, and no warning of what only a fit would do."""
    with config_errors(cfg, data_only=True), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "The dirpath has changed"
        )  # of a checkpoint callback, which keeps none now
        yield


def read_checkpoint(path: str, *, resumes: bool = False) -> dict[str, Any]:
    """Return the content of a checkpoint, its tensors mapped; empty for one that Lightning looks up.

    Args:
        path: The file; a folder of a sharded checkpoint and Lightning's own words are left to Lightning.
        resumes: True if a fit resumes from it: then it must have the state of the fit too, besides weights.

    Raises:
        ConfigError: If the file cannot be loaded as a Lightning checkpoint of tensors and plain values, or a fit
            cannot resume from it.
    """
    if not Path(path).is_file():
        return {}
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # pickle, zip and torch have a dozen types for a damaged or hostile file
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"ckpt_path={path!r} cannot be read as a checkpoint of tensors and plain values: {reason}"
        ) from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), Mapping):
        raise ConfigError(
            f"ckpt_path={path!r} is not a Lightning checkpoint: it has no state_dict; to start from its weights, pass "
            f"model.weights={path}"
        )
    missing = [
        name for name in ("epoch", "global_step", "loops", "optimizer_states") if name not in checkpoint
    ]
    if resumes and missing:
        raise ConfigError(
            f"ckpt_path={path!r} holds weights alone, without {', '.join(missing)}: a fit cannot resume from it; to "
            f"start from its weights, pass model.weights={path}"
        )
    return checkpoint


def _hyperparameters(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of its model that a checkpoint holds, but for those that no file may choose."""
    arguments = checkpoint.get("hyper_parameters")
    if not isinstance(arguments, Mapping):
        return {}
    return {str(name): value for name, value in arguments.items() if name not in _NEVER_FROM_CHECKPOINT}


def _build_model(cfg: DictConfig, names: Mapping[str, Any]) -> LightningModule:
    """Build the model of a config with arguments from files.

    Only the config passes through Hydra. In a checkpoint or a data set, a mapping with ``_target_`` or a string with
    ``${...}`` is a plain argument of the constructor.

    Raises:
        InstantiationException: If the constructor refuses its arguments.
    """
    constructor = instantiate(cfg.model, _partial_=True, _convert_="all")
    arguments = _taken(cfg, names)
    try:
        model: LightningModule = constructor(**arguments)
    except Exception as error:  # as `instantiate` reports it
        target = cfg.model["_target_"]
        raise InstantiationException(
            f"Error in call to target {target!r}:\n{error!r}\nfull_key: model"
        ) from error
    return model


def _check_names(held: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse data whose labels mean other things than those that a checkpoint was trained on."""
    for key in ("class_names", "keypoint_names", "attributes"):
        if held.get(key) is not None and key in found and found[key] != held[key]:
            remedy = (
                "; give dataset.class_names=[...] in the checkpoint's order" if key == "class_names" else ""
            )
            raise ConfigError(
                f"{key} of the checkpoint are {held[key]}, and of the data {found[key]}: its labels would mean "
                f"something else{remedy}"
            )


def _check_boxes(cfg: DictConfig) -> None:
    """Refuse a detector for a format without boxes before the data is read: it would learn whole images as objects."""
    source = cfg.get("dataset") or {}
    format_name = source.get("format")
    datamodule = locate(cfg.datamodule["_target_"])
    if not isinstance(datamodule, type) or not issubclass(datamodule, DetectionDataModule):
        return
    if format_name in _FORMATS_WITHOUT_BOXES:
        raise ConfigError(
            f"dataset.format={format_name} has a class for each image and no boxes, and datamodule is a "
            f"{datamodule.__name__}, which needs boxes; did you mean experiment=classification?"
        )


def _check_masks(cfg: DictConfig) -> None:
    """Refuse a model that learns or scores masks for a data module without them, before the data is read."""
    if cfg.model.get("masks") is True and cfg.datamodule.get("masks") is False:
        raise ConfigError(
            "model.masks=true, and datamodule.masks=false: targets would have no masks; give datamodule.masks=true, or "
            "choose a model without masks, such as model=fasterrcnn_resnet50_fpn_v2"
        )


def _check_task(cfg: DictConfig) -> None:
    """Refuse a data module and a model of different tasks before the data is read."""
    known = {name: locate(target) for name, target in shipped_targets("model").items()}
    check_model_fits(locate(cfg.datamodule["_target_"]), locate(cfg.model["_target_"]), known)


def _taken(cfg: DictConfig, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the model's constructor takes and the config does not set; ``weights`` wins."""
    parameters = signature(get_object(cfg.model["_target_"])).parameters.values()
    is_open = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    taken = {each.name for each in parameters}
    return {
        name: value
        for name, value in names.items()
        if (name in taken or is_open) and (name not in cfg.model or name == "weights")
    }


def _trainer(cfg: DictConfig, model: LightningModule, further: tuple[Callback, ...]) -> Trainer:
    """Return the trainer with what its groups hold; keys of ``trainer`` itself come first."""
    own = cfg.trainer
    loggers: list[Logger] | Any = [instantiate(each, _convert_="all") for each in _targets(cfg.get("logger"))]
    given: dict[str, Any] = {} if "logger" in own else {"logger": loggers or False}
    has_logger = bool(loggers) if "logger" not in own else own.logger not in (None, False)
    callbacks = [
        instantiate(each, **_monitored(each, model), _convert_="all")
        for each in _targets(cfg.get("callbacks"))
    ]
    refused: list[type[Callback]] = []  # by a trainer that has no place for what they write
    if not has_logger or own.get("fast_dev_run"):
        refused.append(LearningRateMonitor)
    if own.get("enable_checkpointing") is False:
        refused.append(Checkpoint)
    callbacks = [each for each in callbacks if not isinstance(each, tuple(refused))]
    listed = instantiate(own.callbacks, _convert_="all") if own.get("callbacks") else []
    trainer: Trainer = instantiate(
        own, callbacks=[*listed, *callbacks, *further], **given, _convert_="all", _recursive_=False
    )
    return trainer


def _targets(group: DictConfig | None) -> Iterator[DictConfig]:
    """Yield what a group's mapping holds; a value of null was switched off."""
    for value in (group or {}).values():
        if isinstance(value, DictConfig) and "_target_" in value:
            yield value


def _monitored(callback: DictConfig, model: LightningModule) -> dict[str, Any]:
    """Return what ``monitor: auto`` and ``mode: auto`` of a callback stand for: the task's metric.

    Raises:
        ConfigError: If the model names none.
    """
    names = {"monitor": "monitor", "mode": "monitor_mode"}
    wanted = [name for name in names if callback.get(name) == "auto"]
    if wanted and not isinstance(getattr(model, "monitor", None), str):
        raise ConfigError(
            f"{callback['_target_']} has monitor=auto, and a {type(model).__name__} has no attribute `monitor`; name a "
            "metric that it logs"
        )
    return {name: getattr(model, names[name]) for name in wanted}


@rank_zero_only
def _log_hyperparameters(run: Run) -> None:
    """Give the config and the sizes of the model to every logger."""
    if not run.trainer.loggers:
        return
    sizes = {"total": 0, "trainable": 0}
    for parameter in run.model.parameters():
        sizes["total"] += parameter.numel()
        sizes["trainable"] += parameter.numel() * parameter.requires_grad
    config: Any = OmegaConf.to_container(run.cfg, resolve=True, throw_on_missing=False)
    names = getattr(run.datamodule, "class_names", None)
    hyperparameters = {**config, "num_parameters": sizes}
    if names is not None:  # loggers write YAML files, which Lightning reads through OmegaConf
        hyperparameters["class_names"] = [escape_interpolations(str(name)) for name in names]
    for logger in run.trainer.loggers:
        logger.log_hyperparams(hyperparameters)
