"""Masking of credentials in text that is shown or stored."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MASK", "is_secret_name", "mask_addresses"]

MASK: Final = "***"

# Whole words: a tokenizer and a number of tokens are settings.
_SECRET: Final = re.compile(
    r"(?:^|[._-])(?:auth|authorization|pwd|\w*?(?:password|passwd|passphrase|secret|credentials?|token)"
    r"|(?:\w*?[_-])?(?:api|access|private|secret)[_-]?keys?)(?=$|[._-])|(?:^|\.)(?:secrets|tokens)(?=$|\.)",
    re.IGNORECASE,
)


def mask_addresses(text: str) -> str:
    """Replace user names, passwords and queries of addresses by ``***``."""
    # A password may contain "@".
    text = re.sub(r"(?<=://)[^/\s]*@", f"{MASK}@", text)
    return re.sub(r"(://[^\s?]*\?)[^\s'\"]+", rf"\1{MASK}", text)


def is_secret_name(key: str) -> bool:
    """Return True if a key such as ``logger.wandb.api_key`` names a secret."""
    # `accessToken` has the same words as `access_token`.
    return _SECRET.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key)) is not None
