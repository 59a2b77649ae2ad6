"""The app in this process on a few small drawn scenes."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from types import SimpleNamespace
from unittest import mock

from lit_loader.app.commands import main

SMALL = [
    "experiment=shapes",
    "dataset.num_images={train: 16, val: 8, test: 8}",
    "dataset.image_size=48",
    "dataset.class_shares=[0.5,0.3,0.2]",
    "datamodule.batch_size=4",
    "workers=inline",
    "model.model.channels=8",
    "model.model.head_channels=32",
    "model.model.min_size=48",
    "model.model.max_size=64",
    "model.scheduler=null",
    "trainer=cpu",
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1",
    "trainer.enable_progress_bar=false",
    "+trainer.enable_model_summary=false",
    "~callbacks.pictures",
    "~callbacks.curves",
    "~callbacks.rich_progress",
    "~callbacks.model_summary",
]


def run_app(folder, *words):
    """Run ``lit-loader`` in a folder; return its exit code, its output and its errors."""
    return in_folder(folder, lambda: main([str(word) for word in words]))


def in_folder(folder, run):
    """Call a function in a folder as a program would run there; return its value or exit code, and its output."""
    handlers = list(logging.root.handlers)
    level = logging.root.level
    code = None
    out = io.StringIO()
    err = io.StringIO()
    # Lightning exports the seed of a run, which the next run must not see.
    with mock.patch.dict(os.environ), contextlib.chdir(folder):
        os.environ.pop("PL_GLOBAL_SEED", None)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run()
        except SystemExit as stop:
            code = stop.code
        finally:
            for handler in set(logging.root.handlers) - set(handlers):
                handler.close()
            logging.root.handlers[:] = handlers
            logging.root.setLevel(level)
    code = None if isinstance(code, dict) else code  # runpy returns the names of a module
    return SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())
