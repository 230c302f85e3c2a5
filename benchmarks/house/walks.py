"""Walks: through how many modules one argument of a function passes, over all calls that the code names.

A walk begins at a function with one parameter and follows, in the order of the code and depth first, every call that is
handed the value, a part of it (an attribute, an item) or what a call has made of it. All branches are taken, one after the
other; a function is entered once. Nothing is run: a function is found by its name and its imports; a method or a property by
the class of its object where an annotation or a constructor says it, else a method by its name if one class alone has it. A
call that several classes could answer is not followed.

* **stays**: successive entries into functions of one module are one stay;
* **rooms**: different modules;
* **names**: different names of parameters and local variables that hold the value, a part of it or what was made of it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
STARTS = {
    "runs to report": "api.reports:report:runs",
    "run to evaluation": "api.evaluation:evaluate:run",
    "job to engine": "api.running:run:job",
}
FACTS = frozenset({"len", "isinstance", "print", "bool", "id", "hash", "type", "issubclass", "hasattr", "callable"})
"""Functions whose result says something about a value and is no part of it."""
COMMON = frozenset(name for kind in (str, dict, list, set, tuple, Path) for name in dir(kind))
"""Methods of Python's own types: not taken for a method of the package by their name alone."""


class Definition(NamedTuple):
    """A class or a function, the module in which it stands, and the class of a method."""

    module: str
    node: ast.ClassDef | Function
    holder: ast.ClassDef | None = None


NOTHING = Definition("", ast.parse("def nothing(): ...").body[0])


class Package:
    """The definitions of a package, by full name, and what each module imports."""

    def __init__(self, root: Path) -> None:
        self.defined: dict[str, Definition] = {}
        self.imported: dict[str, str] = {}
        self.methods: dict[str, list[Definition]] = defaultdict(list)
        for path in sorted(root.rglob("*.py")):
            name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
            self._add(name, ast.parse(path.read_text(encoding="utf-8")))

    def _add(self, module: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                self.imported |= {f"{module}.{a.asname or a.name}": f"{node.module}.{a.name}" for a in node.names}
        for node in tree.body:
            if isinstance(node, ast.ClassDef | Function):
                self.defined[f"{module}.{node.name}"] = Definition(module, node)
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, Function):
                    self.methods[member.name].append(Definition(module, member, node))

    def meaning(self, node: ast.expr | None, module: str) -> Definition | None:
        """The definition that a name or an annotation means in a module; of a union the first of the package."""
        if isinstance(node, ast.BinOp):
            return self.meaning(node.left, module) or self.meaning(node.right, module)
        full = f"{module}.{node.id}" if isinstance(node, ast.Name) else ""
        while full in self.imported and full not in self.defined and full != self.imported[full]:
            full = self.imported[full]
        return self.defined.get(full)

    def member(self, kind: Definition | None, name: str) -> Definition | None:
        """A method of a class or of its bases; of an unknown class the only method of that name."""
        if kind is None:
            known = self.methods[name] if name not in COMMON else []
            return known[0] if len(known) == 1 else None
        if not isinstance(kind.node, ast.ClassDef):
            return None
        own = [method for method in self.methods[name] if method.holder is kind.node]
        bases = filter(None, (self.meaning(base, kind.module) for base in kind.node.bases))
        return own[0] if own else next(filter(None, (self.member(base, name) for base in bases)), None)


class Walk:
    """One walk: the modules that were entered, in order, and the names that the value had."""

    def __init__(self, package: Package, start: str) -> None:
        self.package = package
        self.entries: list[str] = []
        self.names: set[str] = set()
        self._returns: dict[int, bool] = {}
        module, function, parameter = start.split(":")
        self.enter(package.defined[f"grandrounds.{module}.{function}"], {parameter})

    def counts(self) -> dict[str, int]:
        """Stays, different modules and different names."""
        stays = [module for module, _ in groupby(self.entries)]
        return {"stays": len(stays), "rooms": len(set(stays)), "names": len(self.names)}

    def enter(self, function: Definition, held: set[str]) -> bool:
        """Enter a function some of whose parameters hold the value; whether its result holds it, too."""
        key = id(function.node)
        if key not in self._returns:
            self.entries.append(function.module)
            self._returns[key] = True  # while it is read: a function that calls itself
            reader = _Reader(self, function, held)
            for statement in function.node.body:
                reader.visit(statement)
            self._returns[key] = reader.returns
            self.names |= reader.ever
        return self._returns[key]


class _Reader:
    """Reads one function: which names hold the value, and which calls are handed it."""

    def __init__(self, walk: Walk, function: Definition, held: set[str]) -> None:
        self.walk, self.package, self.module = walk, walk.package, function.module
        self.held, self.ever, self.returns = set(held), set(held), False
        nested = [node for node in ast.walk(function.node) if isinstance(node, Function) and node is not function.node]
        self.local = {node.name: Definition(self.module, node) for node in nested}
        self.kinds: dict[str, Definition | None] = {}
        for argument in _parameters(function):
            self.kinds[argument.arg] = self.package.meaning(argument.annotation, self.module)
        if function.holder:
            self.kinds |= dict.fromkeys(("self", "cls"), Definition(self.module, function.holder))

    def visit(self, node: ast.AST) -> None:
        """Read a statement, or an expression whose value is not kept."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case ast.Assign():
                self._bind(node.targets, node.value)
            case ast.AnnAssign() | ast.AugAssign():
                self._bind([node.target], node.value)
            case ast.Return():
                self.returns |= self.holds(node.value)
            case ast.expr():
                self.holds(node)
            case ast.For():
                self._bind([node.target], node.iter)
                for statement in (*node.body, *node.orelse):
                    self.visit(statement)
            case ast.withitem():
                self._bind([node.optional_vars] if node.optional_vars else [], node.context_expr)
            case _:
                for child in ast.iter_child_nodes(node):
                    self.visit(child)

    def holds(self, node: ast.AST | None) -> bool:
        """Whether an expression holds the value; calls in it are followed."""
        match node:
            case ast.Name():
                return node.id in self.held
            case ast.Call():
                return self._call(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.NamedExpr():
                return self._bind([node.target], node.value)
            case ast.Yield() | ast.YieldFrom():
                self.returns |= (found := self.holds(node.value))
                return found
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.IfExp() | ast.Subscript():
                self.visit(node.test if isinstance(node, ast.IfExp) else node.slice)
                kept = (node.body, node.orelse) if isinstance(node, ast.IfExp) else (node.value,)
                return any([self.holds(part) for part in kept])
            case ast.AST():
                found = [self.holds(part) for part in ast.iter_child_nodes(node)]
                return any(found) and not isinstance(node, ast.Compare | ast.JoinedStr)
        return False

    def _comprehension(self, node: Comprehension) -> bool:
        for part in node.generators:
            self._bind([part.target], part.iter)
            self.visit(ast.Tuple(part.ifs, ast.Load()))
        return self.holds(ast.Tuple([node.key, node.value], ast.Load()) if isinstance(node, ast.DictComp) else node.elt)

    def _bind(self, targets: list[ast.expr], value: ast.expr | None) -> bool:
        found, kind = self.holds(value), self._kind(value)
        for name in (part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)):
            if isinstance(name.ctx, ast.Store):
                self.kinds[name.id] = kind if name in targets else None
                (self.held.add if found else self.held.discard)(name.id)
        self.ever |= self.held
        return found

    def _kind(self, node: ast.AST | None) -> Definition | None:
        """The class of an expression's value, where names and annotations say it."""
        if isinstance(node, ast.Name):
            return self.kinds.get(node.id)
        kind = self._kind(node.value) if isinstance(node, ast.Attribute) else None
        if kind and (annotation := _annotation(kind.node, node.attr)):
            return self.package.meaning(annotation, kind.module)
        if isinstance(node, ast.Call | ast.Attribute):
            called = self._function(node.func if isinstance(node, ast.Call) else node)
            if called and not isinstance(called.node, ast.ClassDef):
                return self.package.meaning(called.node.returns, called.module)
            return called
        return None

    def _function(self, node: ast.expr) -> Definition | None:
        if isinstance(node, ast.Name):
            return self.local.get(node.id) or self.package.meaning(node, self.module)
        if isinstance(node, ast.Attribute):
            kind = self.package.meaning(node.value, self.module) or self._kind(node.value)
            return self.package.member(kind, node.attr)
        return None

    def _attribute(self, node: ast.Attribute) -> bool:
        found, method = self.holds(node.value), self.package.member(self._kind(node.value) or NOTHING, node.attr)
        if found and method and any("property" in ast.unparse(mark) for mark in method.node.decorator_list):
            return self.walk.enter(method, {"self"})
        return found

    def _call(self, node: ast.Call) -> bool:
        of = self.holds(node.func.value) if isinstance(node.func, ast.Attribute) else False
        places = [(place, self.holds(value)) for place, value in enumerate(node.args)]
        named = [(keyword.arg, self.holds(keyword.value)) for keyword in node.keywords]
        if not (of or any(found for _, found in (*places, *named))):
            return False
        called = self._function(node.func)
        if called and isinstance(called.node, ast.ClassDef):
            made = self.package.member(called, "__init__")
            return bool(made is None or self.walk.enter(made, _handed(made, places, named, 1)) or True)
        if called is None:
            return not (isinstance(node.func, ast.Name) and node.func.id in FACTS)
        bound = called.holder is not None and "staticmethod" not in map(ast.unparse, called.node.decorator_list)
        held = _handed(called, places, named, int(bound)) | ({"self"} if of and bound else set())
        closure = self.held if called.node.name in self.local else set()
        return self.walk.enter(called, held | closure)


def _annotation(kind: ast.AST, name: str) -> ast.expr | None:
    """The annotation of a class's field."""
    fields = (part for part in ast.iter_child_nodes(kind) if isinstance(part, ast.AnnAssign))
    return next((part.annotation for part in fields if ast.unparse(part.target) == name), None)


def _parameters(function: Definition) -> list[ast.arg]:
    given = function.node.args if isinstance(function.node, Function) else None
    return [*given.posonlyargs, *given.args, *given.kwonlyargs] if given else []


def _handed(
    function: Definition, places: list[tuple[int, bool]], named: list[tuple[str | None, bool]], skipped: int
) -> set[str]:
    """The parameters to which a call gives what holds the value: those of ``*`` and ``**`` if it is none of the others."""
    names = [argument.arg for argument in _parameters(function)]
    found = {names[place + skipped] for place, holds in places if holds and place + skipped < len(names)}
    found |= {name for name, holds in named if holds and name in names}
    arguments = function.node.args if isinstance(function.node, Function) else ast.arguments()
    return found or {part.arg for part in (arguments.vararg, arguments.kwarg) if part}
