"""Your own app: fit a model, test its best checkpoint, and show the effect of balancing.

    python examples/train.py experiment=shapes                 # detection on the embedded data set
    python examples/train.py experiment=shapes_landmarks       # or shapes_finish, or shapes_unified
    python examples/train.py experiment=shapes sampler=class_balanced trainer.max_epochs=1 workers.num_workers=0
    python examples/train.py -m experiment=shapes model.optimizer.lr=0.001,0.01

`lit-loader train` is the same app with the package's configs. Prints the sets with their class mix, and at the end the
test scores, the class mix of the training batches, and the time spent waiting for data. Saves pictures of a training
batch, of predictions and of the classes next to the logs and checkpoints.
"""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from lit_loader.app import run, train


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(cfg: DictConfig) -> float | None:
    """Run one job, and return the metric that a sweep optimises."""
    return train(cfg)


if __name__ == "__main__":
    run(main)
