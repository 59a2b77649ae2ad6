"""Test a checkpoint in your own app.

    python examples/eval.py ckpt_path=logs/train/runs/DATE_TIME/checkpoints/best.ckpt

`lit-loader eval` is the same app with the package's configs.
"""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from lit_loader.app import evaluate, run


@hydra.main(version_base="1.3", config_path="../conf", config_name="eval")
def main(cfg: DictConfig) -> float | None:
    """Test one checkpoint."""
    return evaluate(cfg)


if __name__ == "__main__":
    run(main, command="eval")
