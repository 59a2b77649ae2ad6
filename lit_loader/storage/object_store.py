"""Open a store with obstore; imported only by the processes of `jobs` and `fetch_process`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from lit_loader.errors import SettingError, StorageError
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.foundation.masking import mask_addresses
from lit_loader.storage.settings import StorageSettings

__all__ = ["open_store", "storage_error"]

# obstore 0.12 panics if these are in `config`, so they go into `client_options`.
_CLIENT_OPTIONS: Final = {
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only"),
    *("http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "pool_idle_timeout"),
    *("pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes", "root_certificate"),
    *("randomize_addresses", "read_timeout", "timeout", "user_agent"),
}
_FLAGS: Final = {
    *("allow_http", "allow_invalid_certificates", "http1_only", "http2_only", "http2_keep_alive_while_idle"),
    "randomize_addresses",
}
_CREDENTIALS_FILE: Final = "credentials_file"
_RETRY_OPTIONS: Final = ("max_retries", "retry_timeout")
_REASONS: Final = {
    "PermissionDeniedError": "access is denied (403)",
    "UnauthenticatedError": "the credentials are missing or not valid (401)",
    "PreconditionError": "the object has changed since it was listed",
}
_STATUS_REASONS: Final = {
    "400": "the store refused the request (400)",
    "401": "the credentials are missing or not valid (401)",
    "403": "access is denied (403)",
    "404": "the bucket, container or object does not exist (404)",
}
_NO_NETWORK: Final = ("error sending request", "dns error", "connection refused", "timed out", "connect error")
_CREDENTIALS: Final = "check the credentials: AWS_..., GOOGLE_... or AZURE_... variables, or `storage`"
_MAX_REASON: Final = 300


def open_store(settings: StorageSettings) -> Any:
    """Return obstore's store of a URL, whose paths are relative to the URL's.

    Raises:
        ImportError: If obstore is not installed.
        SettingError: If an option is unknown or has a wrong value; names it, and not its value.
        StorageError: If the store cannot be opened.
    """
    stores = require("obstore.store", "storage")
    config: dict[str, Any] = {}
    client_options: dict[str, Any] = {}
    retry_config: dict[str, Any] = {}
    options: Mapping[str, Any] = settings.options
    for name, value in options.items():
        if name == _CREDENTIALS_FILE:
            continue
        if name in _RETRY_OPTIONS:
            retry_config[name] = _retry_value(name, value)
        elif name in _CLIENT_OPTIONS:
            client_options[name] = _flag(name, value) if name in _FLAGS else value
        else:
            config[name] = value if isinstance(value, bool) else str(value)
    if settings.url.startswith("file:"):
        if settings.options:
            raise _unknown_option(next(iter(settings.options)))
        keywords: dict[str, Any] = {}
    else:
        keywords = {"client_options": client_options or None, "retry_config": retry_config or None}
    if config and settings.url.startswith(("http:", "https:")) and not _is_known_host(settings.url):
        raise _unknown_option(next(iter(config)))
    if config:
        keywords["config"] = config
    if _CREDENTIALS_FILE in settings.options:
        keywords["credential_provider"] = _credential_provider(Path(settings.options[_CREDENTIALS_FILE]))
    try:
        return stores.from_url(settings.url, **keywords)
    except Exception as error:
        if match := re.match(r"Configuration key: '([^']*)' is not valid", str(error)):
            raise _unknown_option(match[1]) from None
        raise storage_error(error, settings.url) from None
    # obstore is written in Rust, whose panics are not of the class Exception.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        message = f"{settings.url}: obstore does not accept these options: {', '.join(settings.options)}"
        raise StorageError(message, remedy="check their names and values") from None


def storage_error(error: BaseException, place: str) -> StorageError:
    """Return an error of obstore as one of this package, without obstore's debugging text.

    Args:
        error: The error.
        place: URL of the object, for the message.
    """
    name = type(error).__name__
    text = str(error).partition("\n\nDebug source:")[0]
    if isinstance(error, FileNotFoundError) or name == "NotFoundError":
        return StorageError(f"{place} does not exist (404)")
    words = printable(_short(text))
    if name == "InvalidPathError":
        # obstore ends a listing at such a key.
        problem = f"{place}: obstore cannot use a key in the store as a path: {words}"
        return StorageError(problem, remedy="rename or delete the object, or give the URL of a folder without it")
    status = re.search(r"\b(?:status|Status)(?: code)?:? *(\d{3})\b", text)
    reason = _REASONS.get(name) or (_STATUS_REASONS.get(status[1]) if status else None)
    if reason is not None:
        remedy = _CREDENTIALS if re.search("40[013]", reason) else ""
        detail = "" if status else f": {words}"
        return StorageError(f"{place}: {reason}{detail}", remedy=remedy)
    if any(words in text.lower() for words in _NO_NETWORK):
        remedy = "check the network, the address and `storage.endpoint`"
        return StorageError(f"{place}: the store cannot be reached: {words}", remedy=remedy)
    return StorageError(f"{place}: {words}")


def _credential_provider(path: Path) -> Callable[[], dict[str, Any]]:
    """Return a function that reads the credentials of a file; obstore calls it when they are about to expire."""

    def read_credentials() -> dict[str, Any]:
        try:
            credentials = json.loads(path.read_bytes())
            expires_at = credentials.get("expires_at")
            if expires_at is not None:
                expires_at = datetime.fromisoformat(expires_at)
                expires_at = expires_at if expires_at.tzinfo else expires_at.replace(tzinfo=UTC)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            # The message of the error may have parts of the file.
            raise StorageError(
                f"credentials_file {path} cannot be read ({type(error).__name__})",
                remedy="expected JSON with access_key_id, secret_access_key, token and expires_at, such as "
                '"2030-01-01T00:00:00Z" or null',
            ) from None
        return {**credentials, "expires_at": expires_at}

    return read_credentials


def _short(text: str) -> str:
    # Addresses may contain signatures in their queries.
    text = " ".join(mask_addresses(text).split())
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."


def _unknown_option(name: str) -> SettingError:
    remedy = "give options by obstore's names, such as endpoint, region, allow_http, skip_signature or max_retries"
    return SettingError(f"storage.{name}", ..., "is not an option of this store", remedy)


def _retry_value(name: str, value: Any) -> Any:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 1e6:
        unit = " of seconds" if name == "retry_timeout" else ""
        raise SettingError(f"storage.{name}", value, f"is not a number{unit} from 0 on")
    return timedelta(seconds=number) if name == "retry_timeout" else int(number)


def _flag(name: str, value: Any) -> bool:
    flags: Mapping[str, bool] = {"true": True, "false": False}
    if str(value).lower() not in flags:
        raise SettingError(f"storage.{name}", value, "is neither true nor false")
    return flags[str(value).lower()]


def _is_known_host(url: str) -> bool:
    """Return True if obstore takes an address for a bucket, and not for a folder of a web server."""
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2].partition(":")[0].lower()
    endings = ("core.windows.net", "fabric.microsoft.com", "amazonaws.com", "r2.cloudflarestorage.com")
    return host.endswith(endings)
