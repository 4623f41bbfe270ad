"""`report.json` of an artifact: written beside the library, and read by those who look at the artifact."""

from __future__ import annotations

import json
from pathlib import Path

from subtune.artifact import manifest as manifests
from subtune.artifact.schema import SchemaError, decode, encode
from subtune.core.account import ACCOUNT_NAME, Account
from subtune.core.errors import ArtifactError
from subtune.core.manifest import Manifest


def write_account(folder: Path, account: Account) -> None:
    """Write the account of the artifact directory `folder`."""
    text = json.dumps(encode(account), separators=(",", ":"))
    (folder / ACCOUNT_NAME).write_text(text, encoding="ascii")


def read_account(folder: Path, manifest: Manifest) -> Account | None:
    """The account of the artifact directory `folder`; None where it has none.

    Raises:
        ArtifactError: it is damaged.
    """
    if all(entry.name != ACCOUNT_NAME for entry in manifest.files):
        return None
    manifests.check_hashes(folder, manifest, (ACCOUNT_NAME,))
    file = folder / ACCOUNT_NAME
    try:
        return decode(Account, json.loads(file.read_bytes()))
    except OSError as e:
        raise ArtifactError(f"cannot read {file}: {e.strerror or e}") from e
    except (ValueError, RecursionError) as e:  # with a right hash: of another version
        what = str(e) if isinstance(e, SchemaError) else f"it is no JSON ({e})"
        raise ArtifactError(f"{file} is of another version of subtune: {what}; compile the model again") from e
