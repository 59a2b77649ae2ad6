"""The fork server of multiprocessing, with torch and this package imported once in it and not in every worker.

Problem: under forkserver each worker imports everything again, ten seconds with torch and torchvision, unless the list
of modules to preload was set before the server started. Mechanism: it is set just before the first loader that needs
it, or by `start_forkserver` at the top of a script, so that the server imports while the script does. One server serves
all loaders of the process. The import of this package alone never starts it.
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
    imports while the script does. A loader that finds no running server starts it in the same way, and has it import
    torchvision and Lightning if this process has imported them. Modules that were set with
    `multiprocessing.set_forkserver_preload` are also imported.

    Args:
        modules: Names of further modules to import there, for instance the dataset's module and its libraries.
            They must be safe to import in another process and start no threads. The server ignores a module that
            cannot be imported.

    Returns:
        True if this call started the server. If it was running already, ``modules`` have no effect.

    Raises:
        TypeError: If a name is not a str.
        ValueError: If the platform has no fork server.
    """
    for name in modules:
        if not isinstance(name, str):
            raise TypeError(f"expected names of modules, got {name!r} of type {type(name).__name__}")
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise ValueError("this platform has no fork server; use the start method spawn")
    server = forkserver._forkserver
    # A private attribute. Without it, the modules are set for a server that may run already, which has no effect.
    if getattr(server, "_forkserver_pid", None) is not None:
        return False
    preloaded: Sequence[str] = getattr(server, "_preload_modules", ("__main__",))
    imported = [name for name in _IF_IMPORTED if name in sys.modules]
    multiprocessing.set_forkserver_preload(list(dict.fromkeys([*_ALWAYS, *imported, *modules, *preloaded])))
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    return True
