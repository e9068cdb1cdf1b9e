"""Check the shape of the code over its syntax trees: who imports whom, what is private, how long things are.

    python -m tests.architecture            # checks src/dovetail, prints the findings, exits 1 if there is one

The rules, by the name that a finding carries:

    layer-order            an import points to a layer that this one may not use (the table `MAY_IMPORT`)
    sibling-import         capture, joint, passes, partition and memory never import each other
    private-torch          a private module or attribute of torch is named outside torch_compat
    private-attribute      `x._name` where x is not self, cls, super() or a class of the same file
    function-level-import  an import statement inside a function
    vague-file-name        a file or folder called utils, helpers, common or misc
    import-circle          modules of one layer import each other in a circle, for types alone included
    function-length        a function of more than 80 lines, its docstring included
    file-length            a file of more than 400 lines

What is *not* checked: imports made at run time from a computed name, and private names reached through `vars` or
`__dict__`. Reviews check those.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "dovetail"
MAX_FUNCTION_LINES = 80
MAX_FILE_LINES = 400

SIBLINGS = frozenset({"capture", "joint", "passes", "partition", "memory"})
# The public face is the root package, `dovetail` itself: what a user imports, and what cli imports as a user.
ROOT = "__init__"

_TO_ANALYSIS = frozenset({"deferred", "errors", "torch_compat", "ir", "ops", "analysis"})
_TO_ARTIFACT = _TO_ANALYSIS | SIBLINGS | {"reach", "execute", "artifact"}
_TO_FRONTENDS = _TO_ARTIFACT | {"pipeline", "frontends"}
_TO_ROOT = _TO_FRONTENDS | {"inspect", "compat", ROOT}

# Layer -> what it may import, from the lowest to the highest. A dotted entry allows that one module of a layer.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "deferred": frozenset(),
    "errors": frozenset(),
    "torch_compat": frozenset({"deferred", "errors"}),
    "ir": frozenset({"deferred", "errors", "torch_compat"}),
    "ops": frozenset({"deferred", "errors", "torch_compat", "ir"}),
    "analysis": _TO_ANALYSIS - {"analysis"},
    "reach": _TO_ANALYSIS,
    **dict.fromkeys(sorted(SIBLINGS - {"capture"}), _TO_ANALYSIS),
    "capture": _TO_ANALYSIS | {"reach"},
    "execute": _TO_ANALYSIS | {"memory.problem", "memory.in_arena", "memory.solve"},
    "artifact": frozenset({"deferred", "errors", "torch_compat", "ir", "ops"}),
    "pipeline": _TO_ARTIFACT,
    "frontends": _TO_FRONTENDS - {"frontends"},
    "inspect": _TO_FRONTENDS,
    "compat": _TO_FRONTENDS | {"inspect"},
    ROOT: _TO_ROOT - {ROOT},
    "testing": _TO_ROOT,
    "serving": _TO_FRONTENDS,
    "cli": _TO_ROOT | {"serving"},
    "__main__": frozenset({"cli"}),
}

# Private torch is for this layer alone.
_COMPAT_LAYER = "torch_compat"
_VAGUE_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc"})
_NAMEDTUPLE_METHODS = frozenset({"_replace", "_fields", "_asdict", "_make", "_field_defaults"})
# Documented in the library reference of Python, underscore or not.
_DOCUMENTED_ATTRIBUTES = frozenset({"sys._getframe", "sys._current_frames", "os._exit"})
_ATTRIBUTE_FUNCTIONS = frozenset({"getattr", "setattr", "hasattr", "delattr"})
_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One broken rule at one line."""

    path: str
    line: int
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.detail}"


@dataclass(frozen=True, slots=True)
class _File:
    """A parsed file, every node of its tree, and the dotted name it is imported by."""

    path: str
    module: str
    is_package: bool
    source: str
    nodes: tuple[ast.AST, ...]

    @property
    def layer(self) -> str:
        parts = self.module.split(".")
        return parts[1] if len(parts) > 1 else ROOT


@dataclass(frozen=True, slots=True)
class _Import:
    """One imported name, as the longest dotted path that the statement spells out."""

    target: str
    line: int


def check_tree(package_root: Path) -> list[Finding]:
    """Check every Python file under the folder of the package.

    Args:
        package_root: the folder called `dovetail`.

    Returns:
        Every finding, by path and line.
    """
    findings: list[Finding] = []
    files: list[_File] = []
    for path in sorted(package_root.rglob("*.py")):
        module = ".".join([PACKAGE, *path.relative_to(package_root).with_suffix("").parts])
        files.append(_parsed(path.read_text(encoding="utf-8"), module, str(path)))
        findings += _check_file(files[-1])
    return sorted([*findings, *_check_circles(files)])


def check_circles(folder: Path, *, module: str) -> list[Finding]:
    """Check who imports whom among the files of one folder. module: the dotted name of the folder."""
    paths = sorted(folder.glob("*.py"))
    files = [_parsed(path.read_text(encoding="utf-8"), f"{module}.{path.stem}", path.name) for path in paths]
    return list(_check_circles(files))


def check_source(source: str, *, module: str, path: str) -> list[Finding]:
    """Check one file.

    Args:
        source: the text of the file.
        module: its dotted name; `dovetail.ir.__init__` for the file of a package.
        path: where findings say that it lies.

    Returns:
        Every finding, by line.
    """
    return _check_file(_parsed(source, module, path))


def _parsed(source: str, module: str, path: str) -> _File:
    name = module.removesuffix(".__init__")
    return _File(path, name, name != module, source, tuple(ast.walk(ast.parse(source, filename=path))))


def _check_file(file: _File) -> list[Finding]:
    findings = [*_check_names(file), *_check_lengths(file), *_check_imports(file), *_check_function_imports(file)]
    if file.layer != _COMPAT_LAYER:
        findings += [*_check_private_torch(file), *_check_private_attributes(file)]
    return sorted(set(findings))


def is_vague_name(name: str) -> bool:
    """Whether the name of a file or folder says nothing about what is in it: `utils`, `_helpers`, `graph_utils`."""
    words = [word for word in name.lower().split("_") if word]
    if len(words) == 1:
        return words[0] in _VAGUE_NAMES
    return bool(words) and words[-1] in _VAGUE_NAMES - {"common"}


# --- names and lengths ----------------------------------------------------------------------------------------------


def _check_names(file: _File) -> Iterator[Finding]:
    for name in file.module.split("."):
        if is_vague_name(name):
            yield Finding(file.path, 1, "vague-file-name", f"{name!r} does not say what is in it")


def _check_lengths(file: _File) -> Iterator[Finding]:
    lines = len(file.source.splitlines())
    if lines > MAX_FILE_LINES:
        yield Finding(file.path, 1, "file-length", f"{lines} lines, at most {MAX_FILE_LINES}")
    for node in file.nodes:
        if isinstance(node, _FunctionNode):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                detail = f"{node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
                yield Finding(file.path, node.lineno, "function-length", detail)


# --- imports --------------------------------------------------------------------------------------------------------


def _check_imports(file: _File) -> Iterator[Finding]:
    allowed = MAY_IMPORT.get(file.layer)
    if allowed is None:
        yield Finding(file.path, 1, "layer-order", f"{file.layer!r} is not a layer of the architecture")
        return
    for imported in _imports(file):
        target = _layer_of(imported.target)
        if target is None or _is_allowed(imported.target, target, file.layer, allowed):
            continue
        siblings = file.layer in SIBLINGS and target in SIBLINGS
        rule = "sibling-import" if siblings else "layer-order"
        yield Finding(file.path, imported.line, rule, f"{file.layer} may not import {imported.target}")


def _check_circles(files: Sequence[_File]) -> Iterator[Finding]:
    """One finding for each circle of imports among the modules of a layer."""
    by_module = {file.module: file for file in files}
    left: dict[str, set[str]] = {}
    for file in files:
        targets = {_longest(imported.target, by_module) for imported in _imports(file)}
        left[file.module] = {t for t in targets if t and t != file.module and by_module[t].layer == file.layer}
    while left:
        ends = [module for module, targets in left.items() if not targets & left.keys()]
        for module in ends:
            del left[module]
        if ends or not left:
            continue
        path = [min(left)]
        while path[-1] not in path[:-1]:  # every module that is left imports another one
            path.append(min(left[path[-1]] & left.keys()))
        circle = path[path.index(path[-1]) :]
        yield Finding(by_module[circle[0]].path, 1, "import-circle", " imports ".join(circle))
        for module in circle[1:]:
            del left[module]


def _longest(path: str, modules: Mapping[str, _File]) -> str:
    """The module that a dotted path begins with; "" where it is none of these."""
    while path and path not in modules:
        path = path.rpartition(".")[0]
    return path


def _is_allowed(path: str, target: str, layer: str, allowed: frozenset[str]) -> bool:
    if target == layer or target in allowed:
        return True
    inner = path.removeprefix(PACKAGE + ".")
    return any("." in entry and (inner == entry or inner.startswith(entry + ".")) for entry in allowed)


def _layer_of(path: str) -> str | None:
    parts = path.split(".")
    if parts[0] != PACKAGE:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ROOT


def _imports(file: _File) -> Iterator[_Import]:
    """Every name that an import statement, `importlib.import_module` or `deferred` of a literal brings in."""
    for node in file.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_base(file, node)
            for alias in node.names:
                yield _Import(base if alias.name == "*" else f"{base}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Call) and _called_name(node) in {"import_module", "__import__", "deferred"}:
            text = _literal(node.args[0]) if node.args else None
            if text is not None:
                yield _Import(text, node.lineno)


def _absolute_base(file: _File, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = file.module.split(".")
    parts = parts[: len(parts) - node.level + (1 if file.is_package else 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _check_function_imports(file: _File) -> Iterator[Finding]:
    for function in file.nodes:
        if isinstance(function, _FunctionNode):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield Finding(file.path, node.lineno, "function-level-import", f"import inside {function.name}")


# --- private names ----------------------------------------------------------------------------------------------------


def _check_private_torch(file: _File) -> Iterator[Finding]:
    for imported in _imports(file):
        if _is_private_torch(imported.target):
            yield Finding(file.path, imported.line, "private-torch", f"{imported.target} is private to torch")
    bindings = _torch_bindings(file)
    for owner, name, line in _attributes(file):
        path = _resolved_path(owner, bindings)
        if path is not None and _is_private_torch(f"{path}.{name}"):
            yield Finding(file.path, line, "private-torch", f"{path}.{name} is private to torch")


def _is_private_torch(path: str) -> bool:
    parts = path.split(".")
    if parts[0] != "torch" or parts[1:2] == ["ops"]:
        return False
    return parts[1:3] == ["fx", "experimental"] or any(_is_private(part) for part in parts[1:])


def _check_private_attributes(file: _File) -> Iterator[Finding]:
    for imported in _imports(file):
        layer = _layer_of(imported.target)
        if layer not in {None, file.layer} and any(_is_private(part) for part in imported.target.split(".")):
            yield Finding(file.path, imported.line, "private-attribute", f"{imported.target} is private to {layer}")
    own_classes = {node.name for node in file.nodes if isinstance(node, ast.ClassDef)}
    bindings = _torch_bindings(file)
    for owner, name, line in _attributes(file):
        is_torch = _resolved_path(owner, bindings) is not None  # torch.ops is public; private-torch has the rest
        if not _is_private(name) or is_torch or _owns_private_names(owner, own_classes):
            continue
        attribute = f"{ast.unparse(owner)}.{name}"
        if attribute not in _DOCUMENTED_ATTRIBUTES:
            yield Finding(file.path, line, "private-attribute", f"{attribute} is private to its owner")


def _attributes(file: _File) -> Iterator[tuple[ast.expr, str, int]]:
    """Owner, name and line of `owner.name` and of `getattr(owner, "name")` and its kind."""
    for node in file.nodes:
        if isinstance(node, ast.Attribute) and node.attr not in _NAMEDTUPLE_METHODS:
            yield node.value, node.attr, node.lineno
        elif isinstance(node, ast.Call) and len(node.args) >= 2:
            name = _literal(node.args[1])
            if isinstance(node.func, ast.Name) and node.func.id in _ATTRIBUTE_FUNCTIONS and name is not None:
                yield node.args[0], name, node.lineno


def _owns_private_names(owner: ast.expr, own_classes: set[str]) -> bool:
    if isinstance(owner, ast.Name):
        return owner.id in {"self", "cls"} or owner.id in own_classes
    if isinstance(owner, ast.Call):
        name = _called_name(owner)
        is_type_of_self = name == "type" and len(owner.args) == 1 and _owns_private_names(owner.args[0], own_classes)
        return name == "super" or is_type_of_self
    return False


def _torch_bindings(file: _File) -> dict[str, str]:
    """Names of the file that stand for a path of torch: `import torch as t`, `aten = torch.ops.aten`."""
    bindings: dict[str, str] = {}
    for node in file.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    bindings[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch" and not node.level:
            for alias in node.names:
                bindings[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in file.nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            path = _resolved_path(node.value, bindings)
            if path is not None and path.startswith("torch.ops"):
                bindings[node.targets[0].id] = path
    return bindings


def _resolved_path(node: ast.expr, bindings: dict[str, str]) -> str | None:
    """The dotted path of a chain of attributes that starts at a name bound to torch, or None."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in bindings:
        return None
    return ".".join([bindings[node.id], *reversed(names)])


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def main() -> int:
    """Print the findings of src/dovetail; the exit status is 1 if there is one."""
    findings = check_tree(Path(__file__).resolve().parent.parent / "src" / PACKAGE)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
