"""Objects that answer differently when they are read again, as code in the site's process could make them."""

from collections.abc import Mapping


class StatefulDict(dict):
    """Shows ``first`` in the first readings, then ``later``."""

    def __init__(self, first, later, readings=1):
        super().__init__(first)
        self._later, self._readings = later, readings

    def _shown(self):
        self._readings -= 1
        return dict(super().items()) if self._readings >= 0 else self._later

    def __getitem__(self, key):
        return self._shown()[key]

    def __iter__(self):
        return iter(self._shown())

    def __len__(self):
        return len(self._shown())

    def get(self, key, default=None):
        return self._shown().get(key, default)

    def keys(self):
        return self._shown().keys()

    def items(self):
        return self._shown().items()

    def values(self):
        return self._shown().values()


class StatefulText(str):
    """Looks like ``text`` and carries ``load``."""

    __slots__ = ("load",)

    def __new__(cls, text, load):
        made = super().__new__(cls, text)
        made.load = load
        return made

    def __str__(self):
        return self.load

    def __repr__(self):
        return self.load


class OtherMapping(Mapping):
    """No dictionary at all."""

    def __init__(self, content):
        self.content = content

    def __getitem__(self, key):
        return self.content[key]

    def __iter__(self):
        return iter(self.content)

    def __len__(self):
        return len(self.content)
