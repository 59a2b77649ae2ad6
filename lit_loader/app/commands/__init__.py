"""The command ``lit-loader``: convert annotations of any format, list what they hold, train on them.

Converting and listing need no torch.
"""

from __future__ import annotations

from lit_loader.app.commands.main import main

__all__ = ["main"]
