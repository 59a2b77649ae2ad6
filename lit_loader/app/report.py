"""The report at the end of a run: scores, the classes in its batches, and the time spent waiting for data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from rich.console import Console
from rich.table import Table

from lit_loader.callbacks import ClassMix, ClassMixMonitor, DataMonitor
from lit_loader.callbacks.attached import find_callback
from lit_loader.datamodules.summary import shown_rows
from lit_loader.foundation.escaping import printable
from lit_loader.recipes import Task
from lit_loader.recipes.metrics import Report

__all__ = ["print_report"]


def print_report(
    model: LightningModule, trainer: Trainer, metrics: Mapping[str, float], out: Console, validation: Report
) -> None:
    """Print the scores of a run and the figures of its monitors.

    Args:
        model: The model of the run.
        trainer: The trainer of the run, with its monitors as callbacks.
        metrics: Metrics of the run by name, printed if the model is not a `Task`.
        out: The console to print to.
        validation: Scores of the best validation of a `Task`, printed if no test was run.
    """
    if isinstance(model, Task):
        _print_scores(model.test_report() if model.test_scores is not None else validation, out)
    else:
        _print_scores([("", metrics)] if metrics else [], out)
    class_monitor = find_callback(trainer, ClassMixMonitor)
    for mix in () if class_monitor is None else class_monitor.mixes.values():
        _print_mix(mix, out)
    data_monitor = find_callback(trainer, DataMonitor)
    if data_monitor is not None and data_monitor.num_batches:
        # The overrides in a diagnosis are to be copied, so their lines stay whole.
        for line in data_monitor.lines():
            out.print(line, soft_wrap=True, highlight=False)


def _print_scores(results: Sequence[tuple[str, Mapping[str, float]]], out: Console) -> None:
    """Print scores; results with the same names of scores share a table, one column each."""
    # A multi-task model has several sections, and sections of the same task have the same names.
    tables: dict[tuple[str, ...], dict[str, Mapping[str, float]]] = {}
    for title, scores in results:
        tables.setdefault(tuple(scores), {})[title] = scores
    for names, columns in tables.items():
        table = Table("", *map(printable, columns))
        values_by_name = {name: [scores[name] for scores in columns.values()] for name in names}
        # A class without objects in the test set has no score.
        rows = shown_rows(np.array([all(map(math.isnan, values)) for values in values_by_name.values()]))
        for name in (names[row] for row in rows):
            values = values_by_name[name]
            table.add_row(printable(name), *(str(v) if isinstance(v, int) else f"{v:.3f}" for v in values))
        if len(rows) < len(names):
            table.add_row(f"{len(names) - len(rows)} without a score", *("nan" for _ in columns))
        out.print(table)


def _print_mix(mix: ClassMix, out: Console) -> None:
    """Print the share of each class in the dataset, its expected share, and its share in the batches."""
    # A run that ends before its first batch has no shares.
    if not mix.counts.any():
        return
    table = Table(printable(mix.label), "in the set", "expected", "arrived", title="mix", title_justify="left")
    shares = [share for share in (mix.natural, mix.expected, mix.arrived) if share is not None]
    rows = shown_rows(np.sum(shares, axis=0) == 0)
    for i in rows:
        cells = ("n/a" if share is None else f"{share[i]:.1%}" for share in (mix.natural, mix.expected))
        table.add_row(printable(mix.class_names[i]), *cells, f"{mix.arrived[i]:.1%}")
    if len(rows) < len(mix.class_names):
        table.add_row(f"{len(mix.class_names) - len(rows)} without objects")
    out.print(table)
