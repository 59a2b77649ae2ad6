"""Base class of all tasks: the model's parameters and optimizer, metrics and their report."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, ClassVar, Literal, TypeAlias, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from lit_loader.collate import batch_images
from lit_loader.datamodules import TableDataModule
from lit_loader.datamodules.resuming import held_loaders
from lit_loader.inspection.curves import CurveTask
from lit_loader.recipes.category_ids import category_ids_of, read_category_ids, save_category_ids
from lit_loader.recipes.metrics import Report
from lit_loader.recipes.network import check_unit_range
from lit_loader.recipes.parameters import freeze_parameters, parameter_groups
from lit_loader.recipes.set_scores import SetMetrics, full_report, set_names
from lit_loader.recipes.without_duplicates import WithoutDuplicates

__all__ = ["LRSchedulerCallable", "OptimizerCallable", "Task", "WarmupCosineLR"]

Metric: TypeAlias = WithoutDuplicates[Any]
OptimizerCallable: TypeAlias = Callable[[Iterable[Any]], Optimizer]
LRSchedulerCallable: TypeAlias = Callable[[Optimizer], LRScheduler | ReduceLROnPlateau]


class WarmupCosineLR(LambdaLR):
    """A linear warm-up, then half a cosine down to 0 at the last step; steps are optimizer steps.

    The factor of step s is ``(s + 1) / (warmup_steps + 1)`` in the warm-up, then
    ``0.5 * (1 + cos(pi * (s - warmup_steps) / (total_steps - warmup_steps)))``; 1 while the total is not known.

    Args:
        optimizer: Optimizer whose learning rates are multiplied.
        warmup_steps: Steps of the warm-up, 0 for none.
        total_steps: Steps of the whole fit, or None to take them from the trainer of the task.

    Raises:
        ValueError: If ``warmup_steps`` is negative, or ``total_steps`` not above it.

    Source:
        Loshchilov and Hutter 2017, "SGDR", without restarts; Goyal et al. 2017 for the warm-up.
    """

    interval: ClassVar[str] = "step"

    def __init__(self, optimizer: Optimizer, *, warmup_steps: int = 50, total_steps: int | None = None) -> None:
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps={warmup_steps} must be 0 or more")
        if total_steps is not None and total_steps <= warmup_steps:
            raise ValueError(f"total_steps={total_steps} must be above warmup_steps={warmup_steps}")
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.find_total: Callable[[], float] | None = None  # set by `Task`
        super().__init__(optimizer, self.factor)

    def factor(self, step: int) -> float:
        """Return the learning rate of a step as a fraction of its peak."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        total = math.inf
        if self.total_steps is not None:
            total = self.total_steps
        # LambdaLR asks for step 0 in its constructor, where the trainer's total is unknown, see `Task._total_steps`.
        elif self.find_total is not None and step:
            total = self.find_total()
        # A fit may be shorter than the warm-up: `max_steps` of a trial run.
        if not self.warmup_steps < total < math.inf:
            return 1.0
        # After the total, as in a run resumed with more epochs, the cosine would rise again.
        progress = min(1.0, (step - self.warmup_steps) / (total - self.warmup_steps))
        return 0.5 * (1.0 + math.cos(math.pi * progress))

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the schedule, without functions: it loads under ``weights_only=True``."""
        excluded = ("optimizer", "lr_lambdas", "find_total", "total_steps")
        return {name: value for name, value in vars(self).items() if name not in excluded}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a position."""
        vars(self).update(state_dict)


class Task(LightningModule, CurveTask):
    """A LightningModule around a model that an app can fit, test and report on without knowing its task.

    A subclass gives ``monitor`` and ``monitor_mode``, calls `set_model` and `set_metric` in its constructor, and has
    ``training_step``, ``predict_step`` and `collect`. Several validation or test sets are scored together, as
    ``val/map``, and each alone, as ``val/NAME/map``; see `lit_loader.recipes.set_scores.set_names` for the names.

    Args:
        optimizer: Called with groups of parameters, such as ``partial(torch.optim.SGD, lr=0.01)``, or None for AdamW at
            0.001. Biases and normalisation have no weight decay.
        scheduler: Called with the optimizer, or None for a constant learning rate.
        scheduler_interval: When the scheduler steps, or None for its own: ``"step"`` of `WarmupCosineLR`, ``"epoch"``
            of all others. `ReduceLROnPlateau` watches ``monitor``.
        lr_scales: Factors of the learning rate by patterns of parameter names, as ``fnmatch`` has them, such as
            ``{"backbone.*": 0.1}``; the first match applies. Names are as in ``model.named_parameters()``.
        freeze: Patterns of the names of parameters that are not trained. Layers in a module that is frozen as a whole
            stay in evaluation mode, so that batch normalisation keeps its statistics.
        compile: Whether to compile the model with ``torch.compile``, or a mapping of its arguments.

    Attributes:
        model: The model.
        monitor: Name of the validation metric that picks the best checkpoint.
        monitor_mode: Whether the best is its smallest or its largest value.
        test_scores: The scores of the last test, over all of its sets, or None before a test.
        val_scores: The scores of the last validation, or None before one.
        test_set_scores: The scores of each set of the last test by name, empty for a single set.
        val_set_scores: The scores of each set of the last validation by name, empty for a single set.
        test_curves: The curves of the last test, over all of its sets; empty unless `record_curves` was called.
        batch_errors: The errors of the samples of the last test batch, see `sample_errors`; empty unless recorded.
        category_ids: Category id of each class of the training data by name; empty if its file has none. Set when
            training starts, and from a checkpoint.

    Raises:
        ValueError: If an argument is out of range.
    """

    monitor: ClassVar[str]
    monitor_mode: ClassVar[Literal["min", "max"]]
    model: nn.Module

    def __init__(
        self,
        *,
        optimizer: OptimizerCallable | None = None,
        scheduler: LRSchedulerCallable | None = WarmupCosineLR,
        scheduler_interval: Literal["step", "epoch"] | None = None,
        lr_scales: Mapping[str, float] | None = None,
        freeze: Sequence[str] = (),
        compile: bool | Mapping[str, Any] = False,
    ) -> None:
        super().__init__()
        self.make_optimizer: OptimizerCallable = optimizer or torch.optim.AdamW
        self.make_scheduler = scheduler
        self.scheduler_interval = scheduler_interval
        self.lr_scales = dict(lr_scales or {})
        self.freeze_patterns = freeze
        self.compile_settings = compile
        self._loaders_check = False
        self.val_scores: Any = None
        self.test_scores: Any = None
        self.val_set_scores: dict[str, Any] = {}
        self.test_set_scores: dict[str, Any] = {}
        self.test_curves = []
        self.batch_errors = []
        self.category_ids: dict[str, int] = {}
        self._records_curves = False
        self._error_min_score: float | None = None

    def keep_arguments(self) -> None:
        """Save the arguments of the calling constructor as hyperparameters, in plain values.

        Excluded are callables, which a checkpoint cannot store; ``weights``, because the checkpoint has the trained
        ones; and ``compile``, which depends on the machine. So ``load_from_checkpoint(path)`` needs no weights; if the
        model is a callable, pass it: ``load_from_checkpoint(path, model=builder)``.
        """
        # Lightning's default is the frame that calls `save_hyperparameters`, which here is not the constructor.
        frame = cast(FrameType, cast(FrameType, inspect.currentframe()).f_back)
        self.save_hyperparameters(
            ignore=["compile", "loss", "optimizer", "scheduler", "weights"], frame=frame, logger=False
        )
        if not isinstance(self.hparams.get("model"), str):
            self.hparams.pop("model", None)
        # Hydra's ListConfig and DictConfig would be pickled by class, which `weights_only=True` refuses to load.
        for name, value in self.hparams.items():
            self.hparams[name] = _plain(value)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add `category_ids` to a checkpoint."""
        save_category_ids(checkpoint, self.category_ids)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore `category_ids`, which `PredictionWriter` writes for images without annotations."""
        self.category_ids = read_category_ids(checkpoint)

    def set_model(self, model: nn.Module) -> None:
        """Set the model, freeze its parameters by ``freeze``, and check the patterns of ``lr_scales``.

        Raises:
            ValueError: If a pattern matches no parameter.
        """
        self.model = model
        freeze_parameters(model, self.freeze_patterns)
        # The groups are only checked here: `configure_optimizers` runs long after a typing error was made.
        parameter_groups(model, self.lr_scales)

    def set_metric(self, make: Callable[[], nn.Module]) -> None:
        """Set the metrics of validation and tests.

        Args:
            make: Returns a new metric. Its ``compute_scores`` returns an object with ``logged``, the scores to log by
                name, and ``report()``, see `Report`.
        """
        # One for each stage: a validation that ended with an error leaves its samples in the metric.
        self.val_metric = WithoutDuplicates(make())
        self.test_metric = WithoutDuplicates(make())
        self.val_set_metrics = SetMetrics()
        self.test_set_metrics = SetMetrics()

    def record_curves(
        self, *, min_score: float | None = None, min_iou: float = 0.5, error_min_score: float | None = None
    ) -> None:
        """Record `test_curves`, if the metric of the task has curves, and `batch_errors`; see `CurveTask`."""
        self._error_min_score = error_min_score
        # A subclass may have a metric of its own.
        self._records_curves = hasattr(self.test_metric.metric, "compute_curves")
        if self._records_curves:
            self._start_curves(min_score=min_score, min_iou=min_iou)

    def _start_curves(self, **limits: Any) -> None:
        """Let the metric of tests record curves, with limits for detections."""
        metric: Any = self.test_metric.metric
        metric.record_curves()

    def sample_errors(self, batch: Any, predictions: Any, *, min_score: float) -> list[tuple[float, str]]:
        """Return how wrong the predictions of each sample of a batch are, and a text that says it.

        Args:
            batch: A batch with annotations.
            predictions: Result of `collect` for the batch.
            min_score: Detections with lower scores do not count.

        Returns:
            One pair a sample, or an empty list if the task has no errors. A larger error is worse; a sample that cannot
            be measured has NaN.
        """
        return []

    def setup(self, stage: str) -> None:
        """Compile the model if ``compile`` is set; state dicts keep their names."""
        # In place, since `torch.compile(model)` would prefix the names in state dicts. Once for several fits.
        if self.compile_settings is not False and self.model._compiled_call_impl is None:
            self.model.compile(**(self.compile_settings if isinstance(self.compile_settings, Mapping) else {}))

    def train(self, mode: bool = True) -> Task:
        """Set the mode of all modules but the layers of those that are frozen as a whole, which are not trained."""
        super().train(mode)
        self._keep_frozen()
        return self

    def on_train_start(self) -> None:
        """Keep frozen layers in evaluation mode; before, Lightning would warn of modules in it. Set `category_ids`."""
        datamodule = getattr(self.trainer, "datamodule", None)
        table = datamodule.first_table(("train",)) if isinstance(datamodule, TableDataModule) else None
        if table is not None:
            self.category_ids = category_ids_of(table)
        self._keep_frozen()
        self._check_before_transfer()

    def on_validation_start(self) -> None:
        """Let the loaders check batches before they are moved."""
        self._check_before_transfer()

    on_test_start = on_validation_start

    def check_batch(self, batch: Any) -> None:
        """Refuse a batch whose values do not fit the task, such as labels without a name.

        Called before the batch is moved, so that no step waits for the device. Batch transforms come later, so a batch
        of a type that the task cannot read is let pass.
        """

    def must_check(self, values: Tensor) -> bool:
        """Return whether a step has to check values: they can be read at once, or no loader has checked them."""
        return values.device.type == "cpu" or not self._loaders_check

    def _check_before_transfer(self) -> None:
        """Let lit_loader's loaders check batches before these are moved; no others can."""
        loaders = list(held_loaders(self._trainer))
        for loader in loaders:
            # Weak references: a loader outlives the fit, and would otherwise keep the model in memory.
            loader.check_batch = partial(_check_while_running, weakref.ref(self))
        self._loaders_check = bool(loaders)

    def _keep_frozen(self) -> None:
        """Set layers such as normalisation and dropout to evaluation mode in modules that are frozen as a whole."""
        # Only layers: larger modules may compute other outputs in evaluation mode, such as torchvision's detectors,
        # which return losses in training.
        for module in self.model.modules() if self.freeze_patterns else ():
            parameters = list(module.parameters())
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                for layer in module.modules():
                    layer.training = layer.training and any(True for _ in layer.children())

    def on_train_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Raise ValueError for images that are already normalised, in the first batch."""
        # One batch is enough, because all pass the same transforms; reading every one would wait for the device.
        if batch_idx == 0:
            check_unit_range(batch_images(batch))

    on_validation_batch_start = on_train_batch_start
    on_test_batch_start = on_train_batch_start
    on_predict_batch_start = on_train_batch_start

    def collect(self, batch: Any, metric: Metric) -> Any:
        """Predict on a batch of validation or test, and update its metric.

        Returns:
            Predictions for `sample_errors`, or None.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method collect(self, batch, metric)")

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Update the metric of validation and, if there are several sets, of the batch's set."""
        self._evaluate("val", batch, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Update the metric of tests and, if there are several sets, of the batch's set; record errors of samples."""
        predictions = self._evaluate("test", batch, dataloader_idx)
        self.batch_errors = []
        # A subclass may collect without telling its predictions.
        if self._error_min_score is not None and predictions is not None:
            self.batch_errors = self.sample_errors(batch, predictions, min_score=self._error_min_score)

    def _evaluate(self, stage: Literal["val", "test"], batch: Any, number: int) -> Any:
        """Update the metrics of a stage with a batch of one of its sets; return the result of `collect`."""
        return self.collect(batch, self.metric_of_set(stage, number))

    def metric_of_set(self, stage: Literal["val", "test"], number: int) -> Metric:
        """Return a metric whose update reaches the metric of a stage and, if there are several sets, of one of them.

        Args:
            stage: The stage.
            number: Position of the set.
        """
        num_batches = self._num_batches(stage)
        if stage == "val":
            return self.val_set_metrics.of_set(number, self.val_metric, num_batches)
        return self.test_set_metrics.of_set(number, self.test_metric, num_batches)

    def on_validation_epoch_end(self) -> None:
        """Compute and log the scores of the validation."""
        self.val_scores, self.val_set_scores = self._score("val", self.val_metric, self.val_set_metrics)

    def on_test_epoch_end(self) -> None:
        """Compute and log the scores of the test."""
        self.test_scores, self.test_set_scores = self._score("test", self.test_metric, self.test_set_metrics)

    @property
    def is_testing(self) -> bool:
        """True during ``trainer.test``, in which `collect` is called as in a validation."""
        return self._trainer is not None and bool(self._trainer.testing)

    def _num_batches(self, stage: Literal["val", "test"]) -> Sequence[float]:
        """Return the number of batches of each set of a stage; without a trainer there is one set."""
        if self._trainer is None:
            return [math.inf]
        return self._trainer.num_val_batches if stage == "val" else self._trainer.num_test_batches

    def _score(
        self, stage: Literal["val", "test"], metric: Metric, set_metrics: SetMetrics
    ) -> tuple[Any, dict[str, Any]]:
        """Return the scores of all sets together, and of each by its name, after logging them."""
        scores = metric.metric.compute_scores()
        if stage == "test":
            self.test_curves = metric.metric.compute_curves() if self._records_curves else []
        metric.reset()
        scores_by_set: dict[str, Any] = {}
        num_batches = self._num_batches(stage)
        # A subclass may have a step that updates the metric of all sets only. A rank may have had no step at all.
        if len(num_batches) > 1 and self.trainer.strategy.reduce_boolean_decision(set_metrics.is_used, all=False):
            names = set_names(getattr(self.trainer, "datamodule", None), stage, len(num_batches))
            scores_by_set = set_metrics.compute_scores(names, metric, num_batches)
        values = {
            f"{stage}/{set_name}/{name}": value
            for set_name, set_scores in scores_by_set.items()
            for name, value in set_scores.logged.items()
        }
        # Every rank has the scores of all ranks; their mean changes nothing and spares Lightning's warning.
        self.log_dict(values, sync_dist=True)
        values = {f"{stage}/{name}": value for name, value in scores.logged.items()}
        self.log_dict(values, prog_bar=stage == "val", sync_dist=True)
        return scores, scores_by_set

    def test_report(self) -> Report:
        """Return the scores of the last test as titled sections of named numbers, see `Report`.

        The sections of all sets together come first; each of several sets has one with its main scores.

        Raises:
            RuntimeError: If no test has run.
        """
        if self.test_scores is None:
            raise RuntimeError("there is nothing to report before a test; call trainer.test(model, ...) first")
        return full_report(self.test_scores, self.test_set_scores)

    def log_sum(self, losses: Mapping[str, Tensor], *, batch_size: int) -> Tensor:
        """Return the sum of losses, and log it as ``train/loss`` and each under its name."""
        total = torch.stack(list(losses.values())).sum()
        values = {f"train/{name}": loss.detach() for name, loss in losses.items()}
        self.log_dict({"train/loss": total.detach(), **values}, batch_size=batch_size)
        return total

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return the optimizer, and its scheduler.

        Raises:
            ValueError: If the scheduler contradicts ``monitor_mode``, ``lr_scales`` or ``scheduler_interval``.
        """
        groups = parameter_groups(self.model, self.lr_scales)
        # The optimizer would keep an unknown key in its groups, and so in every checkpoint.
        scales = [group.pop("lr_scale") for group in groups]
        optimizer = self.make_optimizer(groups)
        # The base rate is known only now, because it is bound to the optimizer's partial. A scheduler takes it over, so
        # it must be scaled before the scheduler exists.
        for group, scale in zip(optimizer.param_groups, scales, strict=True):
            group["lr"] *= scale
        if self.make_scheduler is None:
            return optimizer
        scheduler = self.make_scheduler(optimizer)
        if isinstance(scheduler, WarmupCosineLR):
            scheduler.find_total = self._total_steps
        name = type(scheduler).__name__
        own_interval = getattr(scheduler, "interval", None)
        if isinstance(scheduler, ReduceLROnPlateau) and scheduler.mode != self.monitor_mode:
            raise ValueError(
                f"{name}(mode={scheduler.mode!r}) watches {self.monitor}, whose best value is its "
                f"{self.monitor_mode}imum; give mode={self.monitor_mode!r}"
            )
        if own_interval is not None and self.scheduler_interval not in (None, own_interval):
            interval = self.scheduler_interval
            raise ValueError(f"scheduler_interval={interval!r}: {name} steps by {own_interval}; leave it out")
        # OneCycleLR and CyclicLR replace `initial_lr` by their own.
        bases = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
        if not all(math.isclose(base, bases[0] * scale / scales[0]) for base, scale in zip(bases, scales, strict=True)):
            raise ValueError(
                f"{name} sets its own learning rates, {bases}, which ignore lr_scales={self.lr_scales}; use a "
                "scheduler that multiplies the optimizer's, such as WarmupCosineLR"
            )
        interval = self.scheduler_interval or own_interval or "epoch"
        schedule = {"scheduler": scheduler, "interval": interval, "monitor": self.monitor}
        return {"optimizer": optimizer, "lr_scheduler": schedule}  # type: ignore[return-value] # a TypedDict's dict

    def _total_steps(self) -> float:
        """Return the number of optimizer steps of the fit, infinite if it is not limited."""
        # Only called at a step, never in configure_optimizers: there the trainer would set up the loaders before a
        # checkpoint is loaded, and their state would then never be loaded.
        total = self.trainer.estimated_stepping_batches
        return total if total > 0 else math.inf


def _check_while_running(task_reference: weakref.ref[Task], batch: Any) -> None:
    """Let a task check a batch, unless its trainer has ended, since the loader may be reused without it."""
    task = task_reference()
    # After an error Lightning calls no hook that could reset the loader.
    if task is not None and task.trainer.state.status == TrainerStatus.RUNNING:
        task.check_batch(batch)


def _plain(value: Any) -> Any:
    """Convert containers, such as Hydra's, to dicts and lists."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
