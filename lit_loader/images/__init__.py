"""Images: opening and decoding files, images decoded by region or at reduced size, and the decoded-image cache."""

from __future__ import annotations

from lit_loader.images.decoded_cache import CacheSettings
from lit_loader.images.decoding import MAX_PIXELS
from lit_loader.images.encoded_image import EncodedImage, decode_image, open_image
from lit_loader.images.lazy_image import ChangedImage, CroppedImage, DecodedImage, ImageRegion, LazyImage
from lit_loader.images.reading import ImageReading

__all__ = [
    "CacheSettings",
    "ChangedImage",
    "CroppedImage",
    "DecodedImage",
    "EncodedImage",
    "ImageReading",
    "ImageRegion",
    "LazyImage",
    "MAX_PIXELS",
    "decode_image",
    "open_image",
]
