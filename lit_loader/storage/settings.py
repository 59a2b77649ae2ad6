"""Settings of a store: its URL, how to reach it, and how much of it to keep on this host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from lit_loader.errors import SettingError
from lit_loader.foundation.byte_sizes import byte_count
from lit_loader.foundation.masking import MASK, mask_addresses

__all__ = [
    "SCHEMES",
    "StorageSettings",
    "check_url",
    "hide_secrets",
    "is_public_option",
    "is_url",
    "remote_settings",
    "storage_settings",
]

SCHEMES: Final = ("s3", "gs", "az", "http", "https", "file")
"""Schemes of the URLs of stores."""

_LIMITS: Final = ("cache_budget", "annotation_budget", "window", "num_connections")
# Options of later versions of obstore may be credentials, too, so only these are public.
_PUBLIC_OPTIONS: Final = {
    *("endpoint", "endpoint_url", "base_url", "region", "default_region", "bucket", "account_name", "container_name"),
    "virtual_hosted_style_request",
    *("skip_signature", "unsigned_payload", "request_payer", "s3_express", "imdsv1_fallback", "use_emulator"),
    *("use_azure_cli", "use_fabric_endpoint", "disable_tagging", "allow_http", "allow_invalid_certificates"),
    *("connect_timeout", "read_timeout", "timeout", "pool_idle_timeout", "pool_max_idle_per_host", "http1_only"),
    *("http2_only", "randomize_addresses", "max_retries", "retry_timeout", "server_side_encryption", "role_arn"),
    "credentials_file",
}
_MIN_SECRET: Final = 3


def is_public_option(name: str) -> bool:
    """Return True if the value of an option of ``storage`` may be shown and stored; of unknown names it may not."""
    name = name.lower()
    return name in _LIMITS or re.sub("^(aws|google|azure|azure_storage)_", "", name) in _PUBLIC_OPTIONS


def hide_secrets(text: str, secrets: Mapping[str, Any]) -> str:
    """Replace the values of options that are not public, and the logins and queries of addresses, by ``***``."""
    values = [str(value) for name, value in secrets.items() if not is_public_option(name)]
    # The query of an address has a value percent-encoded.
    values += [quote(value, safe=safe) for value in values for safe in ("", "/")]
    # The longest first, because one secret may contain another one.
    for value in sorted(values, key=len, reverse=True):
        # A value such as "1" would hide half of a message.
        if len(value) >= _MIN_SECRET:
            text = text.replace(value, MASK)
    return mask_addresses(text)


def is_url(root: Path | str) -> bool:
    """Return True if a root is the URL of a store, and False if it is a folder."""
    scheme, separator, _ = str(root).partition("://")
    return bool(separator) and scheme in SCHEMES


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """How to reach a store, and how much of it to keep on this host.

    Args:
        url: URL of the data set's folder, such as ``s3://bucket/set``, without credentials.
        options: Settings of the store by obstore's names, such as ``endpoint``, ``region`` or ``access_key_id``.
            Credentials among them are neither shown nor pickled. The store's own environment variables give the other
            settings.
        cache_dir: Folder whose subfolder ``objects`` holds the caches, or None for the user's cache folder.
        cache_budget: Largest size of the cached images of this store, as a number of bytes or a string such as
            ``"100 GiB"``, or None for half of the free disk space.
        annotation_budget: Largest size of all files that are not images, which are downloaded whole.
        window: Number of samples to keep ahead of each rank.
        num_connections: Number of requests in flight.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    cache_dir: Path | str | None = None
    cache_budget: int | str | None = None
    annotation_budget: int | str = "8 GiB"
    window: int = 512
    num_connections: int = 64

    def __post_init__(self) -> None:
        check_url(self.url, argument="url")

    def __getstate__(self) -> dict[str, Any]:
        # Workers read the cache of the fetch process and need no credentials.
        public = {name: value for name, value in self.options.items() if is_public_option(name)}
        return self.__dict__ | {"options": public}

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON data, with all secrets, for the standard input of a process."""
        cache_dir = None if self.cache_dir is None else str(self.cache_dir)
        return asdict(self) | {"options": dict(self.options), "cache_dir": cache_dir}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StorageSettings:
        """Return the settings of `to_json`."""
        return cls(**data)


def remote_settings(root: str, storage: Mapping[str, Any], *, cache_dir: Path | str | None) -> StorageSettings | None:
    """Return the settings of a source's arguments ``root`` and ``storage``, or None if the root is a folder.

    Raises:
        SettingError: As for `storage_settings`, or if a folder has settings of a store.
    """
    if re.match(r"[A-Za-z][\w+.-]*://", root):
        return storage_settings(root, storage, cache_dir=cache_dir)
    if any(value is not None for value in storage.values()):
        rule = f"is for the URL of a store, and root={root!r} is a folder"
        raise SettingError("storage", ..., rule, settings={"storage": {}})
    return None


def check_url(url: str, *, argument: str = "root") -> None:
    """Refuse a URL that is not the folder of a store, or may contain credentials; the message does not repeat them.

    Args:
        url: URL of the data set's folder.
        argument: Name of the argument with the URL, for messages.

    Raises:
        SettingError: If the URL has another scheme, or contains a login, a query or a fragment.
    """
    scheme, _, place = url.partition("://")
    # A password may contain a slash, so everything up to the last @ may be a login.
    public_url = f"{scheme}://{re.sub('.*@', f'{MASK}@', place.partition('?')[0], flags=re.DOTALL)}"
    if scheme == "memory":
        rule = "is the memory of one process, and images are fetched by another one"
        raise SettingError(argument, public_url, rule, "use file:///..., s3://, gs://, az:// or https://")
    if scheme not in SCHEMES or not place.strip("/"):
        schemes = ", ".join(SCHEMES)
        raise SettingError(argument, public_url, f"is not the URL of a folder in a store; schemes: {schemes}")
    has_login = "@" in place if scheme != "file" else "@" in place.partition("/")[0]
    if has_login or re.search(r"[?#]", place):
        remedy = (
            "give credentials by the store's environment variables or by `storage`; write @ in the name of a folder as "
            "%40"
        )
        raise SettingError(argument, public_url, "must not contain a login, a query or a fragment", remedy)


def storage_settings(
    url: str, storage: Mapping[str, Any], *, cache_dir: Path | str | None, argument: str = "root"
) -> StorageSettings:
    """Return the settings of a source's arguments ``root`` and ``storage``.

    Args:
        url: URL of the data set's folder.
        storage: ``cache_budget``, ``annotation_budget``, ``window``, ``num_connections``, and options of the store by
            obstore's names; None means the default.
        cache_dir: As of `StorageSettings`.
        argument: Name of the argument with the URL, for messages.

    Raises:
        SettingError: As for `check_url`; or if an endpoint contains a login or a query, or a value has a wrong type.
            Values of options are not named.
    """
    check_url(url, argument=argument)
    values = {str(name): value for name, value in storage.items() if value is not None}
    limits: dict[str, Any] = {name: values.pop(name) for name in _LIMITS if name in values}
    # Each connection is a thread.
    for name, limit in (("window", 1 << 20), ("num_connections", 1 << 10)):
        number = limits.get(name, 1)
        if type(number) is not int or not 1 <= number <= limit:
            raise SettingError(f"storage.{name}", number, f"is not a whole number from 1 to {limit}")
    for name in ("cache_budget", "annotation_budget"):
        byte_count(limits.get(name), argument=f"storage.{name}")
    for name, value in values.items():
        if not isinstance(value, str | int | float):
            rule = f"must be text, a number, true or false, got {type(value).__name__}"
            raise SettingError(f"storage.{name}", ..., rule)
        # An endpoint is shown, and stored with a run.
        if re.search("endpoint|base_url", name.lower()) and re.search("[@?#]", str(value)):
            rule = "must not contain a login, a query or a fragment"
            raise SettingError(f"storage.{name}", ..., rule, "give credentials by the store's environment variables")
    return StorageSettings(url=url.rstrip("/"), options=values, cache_dir=cache_dir, **limits)
