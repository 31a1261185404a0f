"""What is behind an error of shared storage, where a user can do something about it: `StoreError.cause`."""

from __future__ import annotations

from enum import StrEnum


class StorageCause(StrEnum):
    """What is behind an error of shared storage, where a user can do something about it that the class does not say."""

    THROTTLED = "throttled"
    PORTAL = "portal"
    """Somebody else answers in place of the storage, perhaps a proxy or a login page."""
    NO_ADDRESS = "no_address"
    """DNS has no address for the host."""
    NO_KEY_FILE = "no_key_file"
    BAD_KEY_FILE = "bad_key_file"
    BAD_KEYS = "bad_keys"
    BAD_PROFILE = "bad_profile"
    CREDENTIALS = "credentials"
    """There are none, or they are not valid any more."""
    REGION = "region"
    NO_BUCKET = "no_bucket"
