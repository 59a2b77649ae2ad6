"""Checks of composed configs against the signatures of their targets, and errors that name the remedy.

Any Hydra app can compose the groups in ``conf/`` by ``hydra.searchpath: [pkg://lit_loader.conf]``, without this
package. An app calls `validate` on its composed config, and runs its main function through `run_with_hints`; a program
without a main function calls `compose_config`. Checks import the targets of a config; importing this package imports no
torch.
"""

from __future__ import annotations

from lit_loader.foundation.extras import require

require("hydra", "hydra")  # before the imports that need it

from lit_loader.app.composition.checks import ConfigError, validate  # noqa: E402 - see above
from lit_loader.app.composition.compose import build_datamodule, compose_config, worker_override  # noqa: E402 - see above
from lit_loader.app.composition.hints import run_with_hints  # noqa: E402 - see above

__all__ = ["ConfigError", "build_datamodule", "compose_config", "run_with_hints", "validate", "worker_override"]
