"""Fit a model, test its best checkpoint, and show what balancing did: detection, landmarks, classes, or all at once.

    python examples/train.py                                   # detection on the embedded data set
    python examples/train.py experiment=landmarks              # or shapes_finish, or unified
    python examples/train.py dataset=coco dataset.root=PATH    # or yolo, voc, csv
    python examples/train.py sampler=class_balanced trainer.max_epochs=1 datamodule.batch_size=8 workers.num_workers=0

`--help` lists the config groups and experiments, `--cfg job` prints the config. Prints the sets with their class
mix, and at the end the test's scores, the class mix as it arrived, and the time spent waiting for data; saves
pictures of a training batch and of predictions beside the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from lit_loader.callbacks import ClassMixMonitor, DataWaitMonitor
from lit_loader.configs import run_with_hints, validate
from lit_loader.datamodules import SetSummary, TableDataModule
from lit_loader.recipes import RecipeModule, draw_predictions, model_kwargs_from_datamodule

console = Console(width=100)


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(cfg: DictConfig) -> None:
    """Run one experiment."""
    validate(cfg)
    logging.getLogger("faster_coco_eval").setLevel(logging.WARNING)
    start, folder = time.monotonic(), Path(HydraConfig.get().runtime.output_dir)
    seed_everything(cfg.seed, verbose=False)
    torch.set_num_threads(cfg.num_threads)
    datamodule: TableDataModule = instantiate(cfg.datamodule, _convert_="all")
    datamodule.prepare_data()
    console.print(datamodule.summary(), markup=False, highlight=False)
    model: RecipeModule = instantiate(cfg.model, **model_kwargs_from_datamodule(datamodule), _convert_="all")

    checkpoint = ModelCheckpoint(
        folder / "checkpoints", "best", monitor=model.monitor, mode=model.monitor_mode
    )
    wait, mixes = DataWaitMonitor(), mix_monitors(datamodule)
    callbacks = [checkpoint, wait, *(monitor for _, monitor in mixes)]
    callbacks += [RichProgressBar()] if cfg.show_progress else []
    quiet = {"logger": False, "enable_progress_bar": cfg.show_progress, "enable_model_summary": False}
    trainer: Trainer = instantiate(
        cfg.trainer, callbacks=callbacks, default_root_dir=folder, **quiet, _convert_="all"
    )
    trainer.fit(model, datamodule=datamodule)
    best, is_tested = checkpoint.best_model_path or None, bool(datamodule.tables("test"))
    if is_tested:
        trainer.test(model, datamodule=datamodule, ckpt_path=best, verbose=False)

    if trainer.is_global_zero:
        weights = f"best checkpoint {best}" if best else "last weights: no validation ran"
        console.print(f"tested: {weights if is_tested else 'nothing, there is no test split'}")
        report(model.test_report() if is_tested else [], wait, mixes)
        datamodule.plot_batch("train", path=folder / "batch.png")
        batch = datamodule.first_batch("test" if is_tested else "train")
        found = draw_predictions(model, datamodule, batch)
        found.savefig(folder / "predictions.png", dpi=120)
        console.print(f"finished in {time.monotonic() - start:.0f} s; pictures and checkpoint in {folder}")


def mix_monitors(datamodule: TableDataModule) -> list[tuple[SetSummary, ClassMixMonitor]]:
    """Return a monitor for what batches are labelled by, and one for every attribute that they hold."""
    labelled, *others = (summary for summary in datamodule.summaries() if summary.name == "train")
    held = [(summary, summary.label) for summary in others if summary.label in datamodule.attributes]
    return [(s, ClassMixMonitor(len(s.class_names), label=by)) for s, by in [(labelled, None), *held]]


def report(
    results: Sequence[tuple[str, dict[str, float]]],
    wait: DataWaitMonitor,
    mixes: Sequence[tuple[SetSummary, ClassMixMonitor]],
) -> None:
    """Print the test's scores, the mixes and the waiting time."""
    tables: dict[tuple[str, ...], dict[str, dict[str, float]]] = {}  # scores of the same names side by side
    for title, scores in results:
        tables.setdefault(tuple(scores), {})[title] = scores
    for names, columns in tables.items():
        table = Table("", *columns)
        for name in names:
            values = [scores[name] for scores in columns.values()]
            table.add_row(name, *(str(v) if isinstance(v, int) else f"{v:.3f}" for v in values))
        console.print(table)
    for summary, monitor in mixes:
        table = Table(summary.label, "in the set", "expected", "arrived", title="mix", title_justify="left")
        for i, name in enumerate(summary.class_names):
            expected = "n/a" if summary.expected_mix is None else f"{summary.expected_mix[i]:.1%}"
            table.add_row(name, f"{summary.natural_mix[i]:.1%}", expected, f"{monitor.mix[i]:.1%}")
        console.print(table)
    share = f"{wait.wait_fraction:.1%} of the training loop"
    console.print(f"waited {wait.wait_s:.1f} s for data in {wait.num_batches} batches ({share})")


if __name__ == "__main__":
    run_with_hints(main)
