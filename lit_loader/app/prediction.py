"""Predict with a checkpoint and write the predictions to files."""

from __future__ import annotations

from inspect import signature
from typing import Any

import hydra
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from lit_loader.app.building import build_run, checkpoint_path, console, loading
from lit_loader.app.composition import ConfigError
from lit_loader.app.running import config_errors, one_job, run
from lit_loader.app.training import has_stage
from lit_loader.callbacks import BadSampleReport, PredictionWriter
from lit_loader.datamodules import TableDataModule
from lit_loader.errors import ImageError
from lit_loader.foundation.counts import counted

__all__ = ["main", "predict"]


def predict(cfg: DictConfig) -> None:
    """Predict with the checkpoint ``ckpt_path`` on the images of ``source``, or on the data without it.

    ``source`` is a folder of images, or one image; it replaces only the dataset. Without it, the model predicts on the
    split ``predict`` or ``test`` of the data. The names of classes and points come from the checkpoint, so the data
    needs no labels. The callback ``predict`` of the config writes the predictions.

    Args:
        cfg: A config as ``conf/predict.yaml`` composes it.

    Raises:
        ConfigError: If a setting is refused, or the data has no images to predict on.
        LitLoaderError: If the data cannot be used.
    """
    with one_job(cfg):
        path = checkpoint_path(cfg, is_needed=True)
        if cfg.get("source") is not None:
            cfg = _with_image_files(cfg)
        with config_errors(cfg, node="predict"):
            writer = instantiate(cfg.predict, _convert_="all")
        run = build_run(cfg, checkpoint=path, callbacks=(writer,), needs_names=False)
        if not has_stage(run.datamodule, "predict"):
            raise ConfigError(
                "the data has no split to predict on; name one with dataset.predict=NAME, or pass source=FOLDER"
            )
        # Refuse a format that cannot hold the predictions before the first batch, not after the last.
        with config_errors(cfg, node="predict"):
            if isinstance(writer, PredictionWriter) and isinstance(run.datamodule, TableDataModule):
                writer.check_task(run.datamodule, run.model)
        options: dict[str, Any] = {"ckpt_path": path, "weights_only": True, "return_predictions": False}
        with config_errors(cfg, node="predict"), loading(cfg):
            try:
                run.trainer.predict(run.model, datamodule=run.datamodule, **options)
            except ImageError as error:
                remedy = "datamodule.on_bad_sample=skip skips images that cannot be read, and lists them"
                raise ImageError(f"{str(error).rstrip()}\n{remedy}") from error
        for report in run.trainer.callbacks:  # type: ignore[attr-defined] # Lightning sets it in a connector
            if isinstance(report, BadSampleReport) and (count := report.num_bad_samples.get("predict")):
                console().print(
                    f"{counted(count, 'image')} could not be read: {report.path or 'see above'}", soft_wrap=True
                )
        console().print(f"predictions of checkpoint {path}:", *writer.paths, soft_wrap=True)


def _with_image_files(cfg: DictConfig) -> DictConfig:
    """Return a copy of a config with the images of ``source`` as its dataset."""
    datamodule = signature(get_object(cfg.datamodule["_target_"])).parameters
    default = datamodule["sample_unit"].default if "sample_unit" in datamodule else None
    cuts_objects = cfg.datamodule.get("sample_unit", default) == "object"
    copy = cfg.copy()
    # Class names from the checkpoint stay out of the config, which would resolve `${...}` in them. The callback takes
    # them from the model.
    with open_dict(copy):
        copy.dataset = {
            "_target_": "lit_loader.datasets.ImageFilesSource",
            "root": "${source}",
            "object_class": "object" if cuts_objects else None,
            **_url_settings(cfg),
            "progress": OmegaConf.select(cfg, "dataset.progress", default=True),
        }
        copy.datamodule.source = "${dataset}"
        # Images have no annotated attributes; the checkpoint names the predicted attributes.
        if "attributes" in copy.datamodule:
            copy.datamodule.attributes = []
    if cuts_objects:
        console().print(
            "datamodule.sample_unit=object: each image is taken as one object that fills it", soft_wrap=True
        )
    return copy


def _url_settings(cfg: DictConfig) -> dict[str, Any]:
    """Return the settings of the data set's store for a source that is a URL, else an empty dict."""
    if "://" not in str(cfg.source):
        return {}
    settings = {name: OmegaConf.select(cfg, f"dataset.{name}") for name in ("storage", "cache_dir")}
    return {name: value for name, value in settings.items() if value is not None}


@hydra.main(version_base="1.3", config_path="pkg://lit_loader.conf", config_name="predict")
def main(cfg: DictConfig) -> None:
    """Predict: ``lit-loader predict``."""
    predict(cfg)


if __name__ == "__main__":
    run(main, command="predict")
