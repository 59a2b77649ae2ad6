"""The fork server of multiprocessing, made useful: it imports torch and this package once, not every worker.

Problem: under forkserver each worker imports everything again, ten seconds with torch and torchvision, unless the
server was told what to import before it started. Mechanism: it is told, just before the first loader that needs
it, or by `start_forkserver` at the top of a script, so that it imports while the script does. One server serves
all loaders of the process. Never at import of this package.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker

__all__ = ["start_forkserver"]

_ALWAYS = ("torch", "lit_loader.loader")
_IF_IMPORTED = ("torchvision", "lightning.pytorch", "lit_loader.datasets", "lit_loader.datamodules")


def start_forkserver(*modules: str) -> bool:
    """Start the fork server with torch and this package imported, and return at once.

    Call it at the top of a script whose loaders use ``multiprocessing_context="forkserver"``: the server then
    imports while the script does. A loader that finds no server running starts it in the same way, with what
    the process has imported of torchvision and Lightning. What `multiprocessing.set_forkserver_preload` was told
    is kept.

    Args:
        modules: Names of further modules to import there, those of the dataset and its libraries for instance.
            They must be safe to import in another process and start no threads. A module that cannot be
            imported is passed over by the server.

    Returns:
        Whether this call started it; False: it was running already, and imports what it was told then.

    Raises:
        TypeError: If a name is not a str.
        ValueError: If the platform has no fork server.
    """
    for name in modules:
        if not isinstance(name, str):
            raise TypeError(
                f"modules hold {name!r}, a {type(name).__name__}; they should be names of modules"
            )
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise ValueError("this platform has no fork server; use the start method spawn")
    server = forkserver._forkserver
    if _is_running(server):
        return False
    told: Sequence[str] = getattr(server, "_preload_modules", ("__main__",))
    imported = [name for name in _IF_IMPORTED if name in sys.modules]
    multiprocessing.set_forkserver_preload(list(dict.fromkeys([*_ALWAYS, *imported, *modules, *told])))
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    return True


def _is_running(server: object) -> bool:
    """Whether the server runs; what tells it is private, and without it the settings are made in vain at worst."""
    return getattr(server, "_forkserver_pid", None) is not None
