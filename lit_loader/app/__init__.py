"""The app over the config groups in ``conf/``: fit and test, test a checkpoint, predict with one.

``lit-loader train``, ``eval`` and ``predict`` run it; an app of one's own is a ``@hydra.main`` function that calls
`train`, `evaluate` or `predict`, run through `run`, see ``examples/train.py``. Names are imported when first asked for:
help and ``--cfg job`` need neither torch nor Lightning.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from lit_loader.foundation.extras import require

if TYPE_CHECKING:
    from lit_loader.app.evaluation import evaluate
    from lit_loader.app.prediction import predict
    from lit_loader.app.running import run
    from lit_loader.app.training import train

__all__ = ["evaluate", "predict", "run", "train"]

_HOMES: Final = {"evaluate": "evaluation", "predict": "prediction", "run": "running", "train": "training"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("hydra", "hydra")  # before the imports that need it
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # later uses of the name do not call this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
