"""The command ``lit-loader``: convert and summarise annotations of any format, train on them, tune workers.

``convert`` and ``index`` need no torch.
"""

from __future__ import annotations

from lit_loader.app.commands.main import main

__all__ = ["main"]
