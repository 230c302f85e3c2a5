"""What counts the project counts small texts right, and comparisons name what differs."""

from benchmarks.house import configurations, weights
from benchmarks.house.counting import counted
from benchmarks.house.walks import Package, Walk

SOURCE = '''"""A module."""

import os  # with a comment
from pathlib import (
    Path,
)

# a comment


def chosen(names, other=None):
    """Which."""
    if not names or other:
        return [name for name in names if name]
    return f"""
{other}
"""
'''
FIRST = """from grandrounds.second import Box, kept, length


def begin(run, other):
    found = kept(run.path)
    length(other)
    box = Box(found)
    return box.opened()
"""
SECOND = """from grandrounds.third import last


class Box:
    def __init__(self, content):
        self.content = content

    def opened(self):
        return last(self.content)


def kept(path):
    return last(path)


def length(value):
    return len(value)
"""


def test_code_is_neither_blank_nor_comment_nor_docstring():
    found = counted(SOURCE)
    assert (found["lines"], found["code"], found["imports"]) == (17, 10, 4)
    assert (found["functions"], found["over_10_branches"]) == (1, 0)
    many = "def f(a):\n" + "    if a:\n        pass\n" * 11
    assert counted(many)["over_10_branches"] == 1


def test_a_walk_follows_what_is_handed_on_and_nothing_else(tmp_path):
    folder = tmp_path / "grandrounds"
    folder.mkdir()
    for name, text in {"first": FIRST, "second": SECOND, "third": "def last(thing):\n    return thing\n"}.items():
        (folder / f"{name}.py").write_text(text)
    walk = Walk(Package(folder), "first:begin:run")
    modules = ["first", "second", "third", "second", "second"]
    assert walk.entries == [f"grandrounds.{name}" for name in modules]  # each function once, `length` never
    assert walk.counts() == {"stays": 4, "rooms": 3, "names": 7}
    assert walk.names == {"run", "found", "box", "path", "thing", "content", "self"}


def test_what_differs_is_named_and_counted(capsys):
    before = {"fedavg": {"server": "a", "sites": "b"}, "gone": {"server": "c"}}
    assert weights.compared(before, {"fedavg": {"server": "x", "sites": "b"}}) == 1
    shown = capsys.readouterr().out
    assert "gone: only before" in shown
    assert "fedavg: differs in server" in shown
    stated = {"fedavg": {"controller.rounds": 3, "controller.old": 1}}
    assert configurations.compared(stated, {"fedavg": {"controller.rounds": 4}}) == 1
    assert "controller.old: only before" in capsys.readouterr().out
    assert configurations.compared(stated, stated) == 0
