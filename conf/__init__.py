"""Config groups: ``hydra.searchpath: [pkg://lit_loader.conf]``. Hydra looks for this file before it reads them."""
