"""What a run tells at its end: scores, the classes that batches brought, waiting time, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from lit_loader.app.building import Run
from lit_loader.callbacks import ClassMixMonitor, DataWaitMonitor
from lit_loader.datamodules import TableDataModule
from lit_loader.recipes import Task, draw_predictions

__all__ = ["print_report", "save_pictures"]


def print_report(run: Run, metrics: Mapping[str, float], out: Console) -> None:
    """Print the scores of the test, or the metrics of another model, the classes in the batches and the waiting time."""
    if isinstance(run.model, Task):
        _print_scores(run.model.test_report() if run.model.test_scores is not None else [], out)
    else:
        _print_scores([("", metrics)] if metrics else [], out)
    for callback in run.trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, DataWaitMonitor) and callback.num_batches:
            share = f"{callback.wait_fraction:.1%} of the training loop"
            out.print(f"waited {callback.wait_s:.1f} s for data in {callback.num_batches} batches ({share})")


def _print_scores(results: Sequence[tuple[str, Mapping[str, float]]], out: Console) -> None:
    """Print scores; those of the same names are side by side."""
    tables: dict[tuple[str, ...], dict[str, Mapping[str, float]]] = {}
    for title, scores in results:
        tables.setdefault(tuple(scores), {})[title] = scores
    for names, columns in tables.items():
        table = Table("", *columns)
        for name in names:
            values = [scores[name] for scores in columns.values()]
            table.add_row(name, *(str(v) if isinstance(v, int) else f"{v:.3f}" for v in values))
        out.print(table)


def save_pictures(run: Run) -> None:
    """Save a training batch, if the run trained, and predictions into the run's folder."""
    datamodule = run.datamodule
    if not isinstance(datamodule, TableDataModule):
        return
    has_test = bool(datamodule.tables("test"))
    run.folder.mkdir(parents=True, exist_ok=True)
    if run.trainer.global_step:
        datamodule.plot_batch("train", path=run.folder / "batch.png")
    batch = datamodule.first_batch("test" if has_test else "train")
    if isinstance(run.model, Task):
        draw_predictions(run.model, datamodule, batch).savefig(run.folder / "predictions.png", dpi=120)
