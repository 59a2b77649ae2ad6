"""Scores of several validation or test sets, each alone: their metrics, their names and their report."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn

from lit_loader.datamodules.set_names import clean_set_names
from lit_loader.datasets import Stage
from lit_loader.recipes.metrics import JointMetric, Report
from lit_loader.recipes.without_duplicates import WithoutDuplicates

__all__ = ["SetMetrics", "full_report", "set_names"]


class SetMetrics(nn.Module):
    """One metric for each of several sets, updated together with the metric of all sets.

    They are copies of that metric and collect its values a second time, so that detections take twice the memory until
    the end of the evaluation, and masks are encoded twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.updates = nn.ModuleList()

    @property
    def is_used(self) -> bool:
        """True once a step has updated one of the metrics."""
        return len(self.updates) > 0

    def of_set(
        self, number: int, metric: WithoutDuplicates[Any], num_batches: Sequence[float]
    ) -> WithoutDuplicates[Any]:
        """Return a metric whose update reaches the metric of all sets and the metric of one of them.

        Args:
            number: Position of the set.
            metric: Metric of all sets; returned itself if there is only one.
            num_batches: Number of batches of each set.
        """
        return metric if len(num_batches) < 2 else self._updates(metric, len(num_batches))[number]

    def compute_scores(
        self, names: Sequence[str], metric: WithoutDuplicates[Any], num_batches: Sequence[float]
    ) -> dict[str, Any]:
        """Return the scores of each set by name, over all ranks, and clear the collected data.

        Args:
            names: Names of the sets.
            metric: Metric of all sets.
            num_batches: Number of batches of each set; a set without batches has no scores.
        """
        scores_by_set: dict[str, Any] = {}
        # A rank may have received no batch of a set, but has to take part in the exchange of its scores.
        updates = self._updates(metric, len(num_batches))
        for name, update, count in zip(names, updates, num_batches, strict=True):
            set_metric = update.metric.alone
            if count:
                with warnings.catch_warnings():
                    # torchmetrics warns on a rank without a batch of this set, and other ranks may have some.
                    warnings.filterwarnings("ignore", "The ``compute`` method of metric .* was called before")
                    scores_by_set[name] = set_metric.compute_scores()
            set_metric.reset()
        return scores_by_set

    def _updates(self, metric: WithoutDuplicates[Any], num_sets: int) -> list[WithoutDuplicates[_Pair]]:
        """Return the metrics of the sets, which are made if there are more or fewer."""
        # A trainer may validate other sets than before.
        if len(self.updates) != num_sets:
            self.updates = nn.ModuleList(WithoutDuplicates(_Pair(metric.metric)) for _ in range(num_sets))
        return cast(list[WithoutDuplicates[_Pair]], list(self.updates))


class _Pair(JointMetric):
    """The metric of all sets, and a copy of it for one set, which are updated with the same values."""

    joint: Any
    alone: Any

    def __init__(self, joint: nn.Module) -> None:
        super().__init__()
        self.joint = joint
        # A copy, since a function that makes metrics could not be pickled with the task.
        self.alone = copy.deepcopy(joint)
        self.alone.reset()
        # The copy is made during an evaluation, and Lightning warns of modules in that mode when training starts.
        self.alone.train()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update both metrics."""
        self.joint.update(*args, **kwargs)
        self.alone.update(*args, **kwargs)


def set_names(datamodule: Any, stage: Stage, num_sets: int) -> list[str]:
    """Return different names of the sets of a stage, for the names of metrics and files.

    Args:
        datamodule: A data module whose ``set_names(stage)`` returns a name for each set, or any other, or None.
        stage: The stage.
        num_sets: Number of sets.

    Returns:
        The data module's names, see `clean_set_names`. Without such a data module the numbers of the sets, from
        ``"0"``.
    """
    raw_names: Sequence[str] = datamodule.set_names(stage) if hasattr(datamodule, "set_names") else []
    # The loaders may be a user's own, next to a data module that only trains.
    if len(raw_names) != num_sets:
        raw_names = [""] * num_sets
    return clean_set_names(raw_names)


def full_report(scores: Any, scores_by_set: Mapping[str, Any]) -> Report:
    """Return the report of the scores of all sets, and of each set a section with its main scores."""
    sections: list[Any] = list(scores.report())
    # The first section has the main scores; one for each class and set would fill the terminal.
    sections += [(f"set {name}", set_scores.report()[0][1]) for name, set_scores in scores_by_set.items()]
    return sections
