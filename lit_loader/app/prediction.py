"""Predict with a checkpoint and write the predictions to files."""

from __future__ import annotations

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from lit_loader.app.building import build_run, checkpoint_path, console, loading
from lit_loader.app.running import config_errors, one_job, run
from lit_loader.app.training import has_stage
from lit_loader.configs import ConfigError

__all__ = ["main", "predict"]


def predict(cfg: DictConfig) -> None:
    """Predict on the split ``predict`` of the data, or ``test`` without one, with the checkpoint ``ckpt_path``.

    The model gets the names of classes and points from the checkpoint; the data needs no labels. The callback
    ``predict`` of the config writes the predictions.

    Args:
        cfg: A config as ``conf/predict.yaml`` composes it.

    Raises:
        ConfigError: If a setting is refused, or there is nothing to predict on.
        LitLoaderError: If the data cannot be used.
    """
    with one_job():
        path = checkpoint_path(cfg, is_needed=True)
        with config_errors(cfg):
            writer = instantiate(cfg.predict, _convert_="all")
        run = build_run(cfg, checkpoint=path, callbacks=(writer,), needs_names=False)
        if not has_stage(run.datamodule, "predict"):
            raise ConfigError("there is nothing to predict on; name it by dataset.predict=NAME")
        with config_errors(cfg), loading(cfg):
            run.trainer.predict(
                run.model,
                datamodule=run.datamodule,
                ckpt_path=path,
                weights_only=True,
                return_predictions=False,
            )
        console().print(f"predictions of checkpoint {path}:", *writer.paths, soft_wrap=True)


@hydra.main(version_base="1.3", config_path="pkg://lit_loader.conf", config_name="predict")
def main(cfg: DictConfig) -> None:
    """Predict: ``lit-loader predict``."""
    predict(cfg)


if __name__ == "__main__":
    run(main)
