"""Fit a detector, test its best checkpoint, and show what balancing did.

    python examples/train.py                                   # the embedded data set
    python examples/train.py experiment=bccd dataset.root=PATH # a real one
    python examples/train.py sampler=random trainer.max_epochs=1 datamodule.batch_size=8 workers.num_workers=0

`--help` lists the config groups, `--cfg job` prints the config. Prints the sets with their class mix, and at
the end test mAP, AP of every class, the class mix as it arrived, and the time spent waiting for data; saves a
picture of a training batch and one of predictions beside the log.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from lit_loader.callbacks import ClassMixMonitor, DataWaitMonitor
from lit_loader.collate import batch_images
from lit_loader.configs import run_with_hints, validate
from lit_loader.datamodules import DetectionDataModule, SetSummary, draw_boxes
from lit_loader.recipes import DetectionModule

console = Console(width=100)


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(cfg: DictConfig) -> None:
    """Run one experiment."""
    validate(cfg)
    logging.getLogger("faster_coco_eval").setLevel(logging.WARNING)
    start, folder = time.monotonic(), Path(HydraConfig.get().runtime.output_dir)
    seed_everything(cfg.seed, verbose=False)
    torch.set_num_threads(cfg.num_threads)
    datamodule: DetectionDataModule = instantiate(cfg.datamodule, _convert_="all")
    datamodule.prepare_data()
    console.print(datamodule.summary(), markup=False, highlight=False)
    model: DetectionModule = instantiate(cfg.model, class_names=list(datamodule.class_names), _convert_="all")

    checkpoint = ModelCheckpoint(folder / "checkpoints", "best", monitor="val/map_50", mode="max")
    wait, mix = DataWaitMonitor(), ClassMixMonitor(num_classes=len(datamodule.class_names))
    callbacks = [checkpoint, wait, mix, *([RichProgressBar()] if cfg.show_progress else [])]
    quiet = {"logger": False, "enable_progress_bar": cfg.show_progress, "enable_model_summary": False}
    trainer: Trainer = instantiate(
        cfg.trainer, callbacks=callbacks, default_root_dir=folder, **quiet, _convert_="all"
    )
    trainer.fit(model, datamodule=datamodule)
    best = checkpoint.best_model_path or None
    trainer.test(model, datamodule=datamodule, ckpt_path=best, verbose=False)

    if trainer.is_global_zero:
        console.print(f"tested: {f'best checkpoint {best}' if best else 'last weights: no validation ran'}")
        report(model, datamodule.summaries()[0], wait, mix)
        pictures(model, datamodule, folder)
        console.print(f"finished in {time.monotonic() - start:.0f} s; pictures and checkpoint in {folder}")


def report(model: DetectionModule, summary: SetSummary, wait: DataWaitMonitor, mix: ClassMixMonitor) -> None:
    """Print the test scores, the class mix and the waiting time."""
    assert model.test_scores is not None
    table = Table("class", "AP@50", "in the set", "expected", "arrived", title="test", title_justify="left")
    for c, name in enumerate(summary.class_names):
        expected = "n/a" if summary.expected_mix is None else f"{summary.expected_mix[c]:.1%}"
        score = model.test_scores.ap_50[name]
        table.add_row(name, f"{score:.3f}", f"{summary.natural_mix[c]:.1%}", expected, f"{mix.mix[c]:.1%}")
    console.print(table)
    console.print(
        f"mAP@50 {model.test_scores.map_50:.3f}, mAP {model.test_scores.map:.3f}\n"
        f"waited {wait.wait_s:.1f} s for data in {wait.num_batches} batches "
        f"({wait.wait_fraction:.1%} of the training loop)"
    )


def pictures(model: LightningModule, datamodule: DetectionDataModule, folder: Path) -> None:
    """Save a training batch as the model gets it, and predictions on test images."""
    datamodule.plot_batch("train", path=folder / "batch.png")
    loaders = datamodule.test_dataloader()
    with loaders[0] if isinstance(loaders, list) else loaders as loader:
        images = batch_images(next(iter(loader)))
    with torch.inference_mode():
        found = model.eval()(images)
    figure = draw_boxes(images, found, class_names=datamodule.class_names, min_score=0.5, title="predictions")
    figure.savefig(folder / "predictions.png", dpi=120)


if __name__ == "__main__":
    run_with_hints(main)
