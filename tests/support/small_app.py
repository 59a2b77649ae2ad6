"""The app in this process on a few small drawn scenes."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from pathlib import Path
from types import SimpleNamespace

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
    "~callbacks.rich_progress",
    "~callbacks.model_summary",
]


def run_app(folder, *words):
    """Run ``lit-loader`` with these words in a folder; return its exit code, its output and its errors."""
    return in_folder(folder, lambda: main([str(word) for word in words]))


def in_folder(folder, run):
    """Call a function in a folder as a program of its own would run; return its value or exit code, and its output."""
    before, handlers, level = Path.cwd(), list(logging.root.handlers), logging.root.level
    seed, code = os.environ.pop("PL_GLOBAL_SEED", None), None
    out, err = io.StringIO(), io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run()
    except SystemExit as stop:
        code = stop.code
    finally:
        os.chdir(before)
        for handler in logging.root.handlers:
            if handler not in handlers:
                handler.close()
        logging.root.handlers[:], logging.root.level = handlers, level
        os.environ.pop("PL_GLOBAL_SEED", None)
        if seed is not None:
            os.environ["PL_GLOBAL_SEED"] = seed
    found = None if isinstance(code, dict) else code  # runpy gives a module's names
    return SimpleNamespace(code=found, out=out.getvalue(), err=err.getvalue())
