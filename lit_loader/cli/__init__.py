"""The command ``lit-loader``: convert annotations of any format, and list what they hold. Needs no torch."""

from __future__ import annotations

from lit_loader.cli.command import main

__all__ = ["main"]
