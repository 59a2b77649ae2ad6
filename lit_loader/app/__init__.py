"""The app over the config groups in ``conf/``: fit and test, test a checkpoint, predict with one.

``lit-loader train``, ``eval`` and ``predict`` run it; an app of one's own is a ``@hydra.main`` function that calls
`train`, `evaluate` or `predict`, run through `run`, see ``examples/train.py``.
"""

from __future__ import annotations

from lit_loader.extras import require

require("hydra", "hydra")  # before the imports that need it

from lit_loader.app.evaluation import evaluate  # noqa: E402 - see above
from lit_loader.app.prediction import predict  # noqa: E402 - see above
from lit_loader.app.running import run  # noqa: E402 - see above
from lit_loader.app.training import train  # noqa: E402 - see above

__all__ = ["evaluate", "predict", "run", "train"]
