"""Keys of homomorphic encryption: the files that FLARE's ``HEBuilder`` puts into startup kits.

``client_context.tenseal`` is a site's and holds the secret key, ``server_context.tenseal`` is the server's. A simulation has
them beside the sites' data.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from grandrounds.errors import ConfigurationError
from grandrounds.files import replacing
from grandrounds.privacy.mechanisms.ciphertexts import is_private, make_keys
from grandrounds.protocol.names import SERVER

SITE_KEY, SERVER_KEY = "client_context.tenseal", "server_context.tenseal"


def write_keys(folder: Path, sites: Iterable[str]) -> None:
    """Draw keys for a simulation: the secret one into each site's folder, the public one into the server's.

    Args:
        folder: of the sites.
        sites: their names.

    Raises:
        ConfigurationError: if TenSEAL is not installed.
    """
    keys = make_keys()
    contents = {folder / site / SITE_KEY: keys.secret for site in sites} | {folder / SERVER / SERVER_KEY: keys.public}
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(content)


def find_key(folders: Sequence[Path], party: str) -> bytes:
    """The key of a party.

    Args:
        folders: where to look, in this order; in each, a folder of the party comes first.
        party: a site, or ``server``.

    Returns:
        A serialised context.

    Raises:
        ConfigurationError: if there is none, it cannot be read, a site's has no secret key, or the server's has one.
    """
    name = SERVER_KEY if party == SERVER else SITE_KEY
    paths = [path for folder in folders for path in (folder / party / name, folder / name)]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise ConfigurationError(
            f"{party}: encryption needs a key; there is none at {', '.join(map(str, paths))}. FLARE's HEBuilder puts one "
            "into every startup kit"
        )
    context = found.read_bytes()
    if is_private(context) == (party == SERVER):
        what = "holds the secret key, which belongs to the sites alone" if party == SERVER else "holds no secret key"
        raise ConfigurationError(f"{found} {what}; provision the kits again")
    return context
