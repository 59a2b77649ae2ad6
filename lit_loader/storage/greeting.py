"""First message of a client: the settings by which a running fetch process decides whether it can serve the client."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from hashlib import blake2b

from lit_loader.foundation.byte_sizes import byte_count
from lit_loader.storage.settings import StorageSettings

__all__ = ["Answer", "Greeting"]

_COMPARED_FIELDS = ("url", "options", "cache_budget", "num_connections")
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")


@dataclass(frozen=True)
class Greeting:
    """Settings of a client, and a digest of the environment variables from which stores take credentials.

    Args:
        settings: The settings, or None of a client without credentials, which any fetch process can serve.
        environment: Digest of the variables.
    """

    settings: StorageSettings | None
    environment: str

    @classmethod
    def of(cls, settings: StorageSettings | None) -> Greeting:
        """Return the greeting of this process."""
        if settings is not None:
            settings = replace(settings, cache_budget=byte_count(settings.cache_budget))
        variables = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
        return cls(settings, blake2b(os.fsencode(repr(variables)), digest_size=16).hexdigest())

    def encode(self) -> bytes:
        """Return the greeting as JSON, with all secrets: the socket is in a folder of the user alone."""
        settings = None if self.settings is None else self.settings.to_json()
        return json.dumps({"settings": settings, "environment": self.environment}).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Greeting:
        """Return the greeting of `encode`.

        Raises:
            ValueError: If the payload is none.
        """
        try:
            data = json.loads(payload)
            settings = data["settings"]
            return cls(None if settings is None else StorageSettings.from_json(settings), str(data["environment"]))
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"not a greeting: {error}") from None

    def differences(self, client: Greeting) -> list[str]:
        """Return the names of settings that a client wants to have otherwise."""
        if client.settings is None:
            return []
        names = [name for name in _COMPARED_FIELDS if getattr(self.settings, name) != getattr(client.settings, name)]
        return names if self.environment == client.environment else [*names, "environment variables"]


@dataclass(frozen=True)
class Answer:
    """Answer to a greeting.

    Args:
        error: Why the fetch process cannot serve the client, or an empty text.
        ignored: Names of settings of the client that it does not follow, because other clients use it.
    """

    error: str = ""
    ignored: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the answer as JSON."""
        return json.dumps({"error": self.error, "ignored": self.ignored}).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Answer:
        """Return the answer of `encode`."""
        data = json.loads(payload)
        return cls(data["error"], tuple(data["ignored"]))
