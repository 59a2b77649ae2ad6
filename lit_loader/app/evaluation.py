"""Test a checkpoint."""

from __future__ import annotations

import time

import hydra
from omegaconf import DictConfig

from lit_loader.app.building import build_run, checkpoint_path
from lit_loader.app.composition import ConfigError
from lit_loader.app.running import one_job, run
from lit_loader.app.training import finish, has_stage, logged_metrics, test

__all__ = ["evaluate", "main"]


def evaluate(cfg: DictConfig) -> float | None:
    """Test the checkpoint ``ckpt_path`` and report as a config says.

    The model gets the names of classes and points from the checkpoint; the data must have the same.

    Args:
        cfg: A config as ``conf/eval.yaml`` composes it.

    Returns:
        ``optimized_metric``, or None if that is null.

    Raises:
        ConfigError: If a setting is refused, or the data has no test split.
        LitLoaderError: If the data cannot be used.
    """
    start = time.monotonic()
    with one_job(cfg):
        # The checkpoint first: a mistake in its path should not wait for the data.
        path = checkpoint_path(cfg, is_needed=True)
        run = build_run(cfg, checkpoint=path)
        if not has_stage(run.datamodule, "test"):
            raise ConfigError("the data has no test split; name one with dataset.test=NAME")
        tested = test(run, path)
        return finish(run, logged_metrics(run), tested, start)


@hydra.main(version_base="1.3", config_path="pkg://lit_loader.conf", config_name="eval")
def main(cfg: DictConfig) -> float | None:
    """Test a checkpoint: ``lit-loader eval``."""
    return evaluate(cfg)


if __name__ == "__main__":
    run(main, command="eval")
