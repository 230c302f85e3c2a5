"""Partition schemes of plug-ins: a class that says which site gets which image, under a name for ``--scheme``.

This module imports neither torch nor a reader, so that the help of the command line appears at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from grandrounds.errors import ConfigurationError
from grandrounds.plugins import Registry

if TYPE_CHECKING:
    import numpy as np

    from grandrounds.data.manifest import Record


class SiteRule(Protocol):
    """What a plug-in's scheme is."""

    def sites(
        self, records: Sequence[Record], options: Any, generator: np.random.Generator
    ) -> Mapping[str, Sequence[Record]]:
        """The records of each site.

        Args:
            records: all of them, without those of the server.
            options: ``PartitionOptions``; ``options.site_count`` is the number of sites.
            generator: the only source of randomness.

        Returns:
            By site; each site has at least one record, and no record is at two. The images of a patient or lesion must be at
            one site, see :func:`~grandrounds.data.partition.groups.divide_groups`.
        """


OwnRule = TypeVar("OwnRule", bound=type[SiteRule])
OWN_SCHEMES: Registry[type[SiteRule]] = Registry("scheme")
SCHEME_NAMES = ("auto", "given", "sites", "dirichlet", "iid", "fedperl", "mdhfl", "external")
"""The package's schemes; a data set names those that can divide it."""


def register_scheme(name: str) -> Callable[[OwnRule], OwnRule]:
    """Register a scheme, for ``grandrounds partition NAME --scheme SCHEME`` and ``gr.partition``; use it as a decorator.

    The server's images are drawn before, and the sites' splits and labels afterwards, as for every scheme. The scheme's name
    is part of its random stream.

    Args:
        name: lower-case letters, digits and ``_``; none of the package's own.

    Returns:
        A decorator of a class with a method ``sites(records, options, generator)``, see :class:`SiteRule`.

    Raises:
        ConfigurationError: if the name is taken or has other characters, or the class has no such method.

    Example::

        @register_scheme("one_source")
        class OneSource:
            def sites(self, records, options, generator):
                names = [f"site-{number + 1}" for number in range(options.site_count)]
                return divide_groups(records, dict.fromkeys(names, 1 / len(names)), generator)
    """
    OWN_SCHEMES.require_name(name)

    def register(scheme: OwnRule) -> OwnRule:
        if not inspect.isclass(scheme) or not callable(getattr(scheme, "sites", None)):
            raise ConfigurationError(
                f"scheme {name}: {scheme!r} must be a class with a method sites(records, options, generator)"
            )
        OWN_SCHEMES.add(name, scheme, scheme)
        return scheme

    return register


def own_schemes() -> Mapping[str, type[SiteRule]]:
    """All registered schemes, those of installed plug-ins included.

    Raises:
        ConfigurationError: if a plug-in cannot be imported, or takes a name of the package.
    """
    return OWN_SCHEMES.all(SCHEME_NAMES)
