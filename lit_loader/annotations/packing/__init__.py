"""Pack annotation tables and their images into shards, on this host or in a store."""

from lit_loader.annotations.packing.index import PACKED_KEY
from lit_loader.annotations.packing.run import PackReport, pack_tables
from lit_loader.annotations.packing.verify import verify_packed

__all__ = ["PACKED_KEY", "PackReport", "pack_tables", "verify_packed"]
