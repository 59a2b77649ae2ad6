"""An app of one's own: fit a model, test its best checkpoint, and show what balancing did.

    python examples/train.py experiment=shapes                 # detection on the embedded data set
    python examples/train.py experiment=shapes_landmarks       # or shapes_finish, or shapes_unified
    python examples/train.py experiment=shapes sampler=class_balanced trainer.max_epochs=1 workers.num_workers=0
    python examples/train.py -m experiment=shapes model.optimizer.lr=0.001,0.01

`lit-loader train` is the same app with the configs of the package. Prints the sets with their class mix, and at the end
the test's scores, the class mix as it arrived, and the time spent waiting for data; saves pictures of a training batch,
of predictions and of the classes beside the logs and checkpoints.
"""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from lit_loader.app import run, train


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(cfg: DictConfig) -> float | None:
    """Run one job; a sweep optimises what is returned."""
    return train(cfg)


if __name__ == "__main__":
    run(main)
