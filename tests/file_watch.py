"""What a process does while it reads and runs a forged file: Python's audit events, system calls, files, its own state.

Three watchers, because none sees everything. Audit hooks see what Python does, not what C++ does. A filter of system
calls (seccomp, Linux on x86-64) ends the process at the first one that writes, starts or connects something. And
inotify sees every file that is opened or made in the folder that the process stands in, where names in forgeries lead.
"""

from __future__ import annotations

import ast
import ctypes
import os
import platform
import random
import struct
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

SECRET, NEW = "secret-file", "new-file"

# --- audit events -----------------------------------------------------------------------------------------------------

_QUIET = frozenset(
    {
        *(
            "object.__getattr__",
            "object.__setattr__",
            "object.__delattr__",
            "sys._getframe",
            "code.__new__",
            "marshal.loads",
        ),
        *("sys._current_frames", "builtins.id", "mmap.__new__", "cpython._PySys_ClearAuditHooks", "sys.unraisablehook"),
        *("function.__new__", "marshal.load", "array.__new__", "ctypes.dlsym", "fcntl.ioctl", "gc.get_objects"),
    }
)


class Watch:
    """The audit events of this process that a file has no reason for. Installed once; it cannot be taken away."""

    def __init__(self, readable: list[str]) -> None:
        """readable: paths that may be opened to read, and folders (ending in /) of which every file may be."""
        library = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        package = str(Path(__file__).resolve().parents[1])
        self._readable = tuple(readable)
        self._code = tuple(f"{place}/" for place in [*library, package, sys.base_prefix])
        self._is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Note events inside this."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on or event in _QUIET:
            return
        self._is_on = False  # what is done here is no event
        try:
            if not self._is_fine(event, arguments):
                self.seen.append(f"{event} {arguments!r}"[:300])
        except Exception as error:
            self.seen.append(f"{event}: {type(error).__name__}: {error}"[:300])
        finally:
            self._is_on = True

    def _is_fine(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int):  # what was opened before, and seen then
                return True
            is_read = isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            return is_read and isinstance(path, str | Path | bytes) and self._may_read(os.fsdecode(path))
        if event in ("os.listdir", "os.scandir"):
            return arguments[0] is not None and self._may_read(f"{os.fsdecode(arguments[0])}/")
        if event in ("pathlib.Path.glob", "pathlib.Path.rglob", "glob.glob"):
            return self._may_read(f"{arguments[0]}/")
        if event == "import":
            return str(arguments[0]).split(".")[0] in {
                *sys.stdlib_module_names,
                "torch",
                "dovetail",
                "sympy",
                "mpmath",
                "numpy",
            }
        if event == "compile":
            return _is_plain_source(*arguments)
        if event == "exec":
            return _is_own_code(arguments[0], self._code)
        return False

    def _may_read(self, path: str) -> bool:
        is_code = path.endswith((".py", ".pyc", ".so", "/")) and path.startswith(self._code)
        return is_code or path in self._readable or path.startswith(tuple(p for p in self._readable if p.endswith("/")))


def _is_own_code(code: Any, folders: tuple[str, ...]) -> bool:
    """Whether code is generated (and its source was seen when it was compiled) or a module of a library."""
    name = str(code.co_filename)
    return name.startswith(("<", *folders)) and name != "<stdin>"


def _is_plain_source(source: Any, filename: Any) -> bool:
    """Whether source is one function of calls, as dovetail generates; anything may be parsed without being run."""
    if filename is None or os.fsdecode(filename) == "<unknown>":  # `ast.parse`
        return True
    if source is None or isinstance(source, ast.AST):
        return source is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source if isinstance(source, str) else bytes(source).decode())
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Import | ast.ImportFrom | ast.Lambda | ast.Await | ast.NamedExpr | ast.ClassDef | ast.Global
        ):
            return False
        if isinstance(node, ast.Attribute) and node.attr.startswith("__") and not _is_operator(node):
            return False
        if isinstance(node, ast.Name) and node.id.startswith("__"):
            return False
        if isinstance(node, ast.Name) and node.id in ("eval", "exec", "open", "compile", "globals", "vars", "input"):
            return False
    return True


def _is_operator(node: ast.Attribute) -> bool:
    """`torch.ops.aten.__and__` and the like."""
    return ast.unparse(node).startswith("torch.ops.")


# --- files ------------------------------------------------------------------------------------------------------------


class Folder:
    """A folder to stand in, with a file that nobody is to open; whatever happens in it is seen."""

    _ALL = 0x00000FFF

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / SECRET).write_bytes(b"secret" * 2000)
        self.path = path
        self._is_seen = False
        if hasattr(os, "fork") and platform.system() == "Linux":
            libc = ctypes.CDLL(None, use_errno=True)
            self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            self._is_seen = self._events >= 0 and libc.inotify_add_watch(self._events, bytes(path), self._ALL) >= 0
        self._before = self._listing()

    def changes(self) -> list[str]:
        """What has happened in the folder since the last time."""
        found = []
        if self._is_seen:
            with suppress(BlockingIOError):
                content = os.read(self._events, 1 << 16)
                while content:
                    _, mask, _, length = struct.unpack_from("iIII", content)
                    name = content[16 : 16 + length].rstrip(b"\0").decode()
                    if name:  # looking at the folder itself is no harm
                        found.append(f"file {name}: event {mask:#x}")
                    content = content[16 + length :]
        now = self._listing()
        if now != self._before:
            found.append(f"files were {sorted(self._before)} and are {sorted(now)}")
            self._before = now
        return found

    def _listing(self) -> dict[str, tuple[int, int]]:
        with os.scandir(self.path) as entries:
            stats = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


# --- system calls -----------------------------------------------------------------------------------------------------

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# x86-64: creat, fork, vfork, execve(at), sockets, what changes where a path leads, ptrace, memfd, io_uring.
_FORBIDDEN = (
    *(85, 57, 58, 59, 322, 41, 42, 49, 53, 76, 80, 81, 82, 83, 84, 86, 87, 88, 90, 91, 92, 93, 94, 101, 132, 133, 161),
    *(165, 188, 189, 190, 235, 258, 259, 260, 261, 263, 264, 265, 266, 268, 280, 316, 310, 311, 319, 425, 437, 29),
)
_OPEN, _OPENAT, _CLONE, _CLONE3 = 2, 257, 56, 435
_THREAD = 0x00010000  # CLONE_THREAD
_LOAD, _IF_EQUAL, _IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_KILL, _ALLOW, _NOT_THERE = 0x80000000, 0x7FFF0000, 0x00050000 | 38
_ARGUMENTS, _ARCHITECTURE, _X86_64 = 16, 4, 0xC000003E


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def forbid_system_calls() -> bool:
    """From now on, this process ends (SIGSYS) when it opens a file to write, or starts or connects anything.

    Returns: whether the system allows that.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_IF_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for number in _FORBIDDEN:
        code += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _KILL)]
    code += [(_IF_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _NOT_THERE)]  # its flags lie in memory; libc takes `clone`
    for number, place, mask in ((_OPEN, 1, _WRITES), (_OPENAT, 2, _WRITES)):
        code += [(_IF_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENTS + 8 * place)]
        code += [(_IF_SET, 0, 1, mask), (_RETURN, 0, 0, _KILL), (_RETURN, 0, 0, _ALLOW)]
    code += [(_IF_EQUAL, 0, 3, _CLONE), (_LOAD, 0, 0, _ARGUMENTS), (_IF_SET, 1, 0, _THREAD), (_RETURN, 0, 0, _KILL)]
    code += [(_RETURN, 0, 0, _ALLOW)]
    content = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    libc = ctypes.CDLL(None, use_errno=True)
    given = _Filter(len(code), ctypes.addressof(content))
    return libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(given), 0, 0) == 0


# --- the process ------------------------------------------------------------------------------------------------------


def process_state() -> dict[str, Any]:
    """What later calls depend on, and no file may change."""
    return {
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "filled": torch.utils.deterministic.fill_uninitialized_memory,
        "onednn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.flags is not None,
        "precision": torch.get_float32_matmul_precision(),
        "flush": float(torch.full((), 1e-40) * 1),
        "warnings": len(warnings.filters),
        "folder": os.getcwd(),
        "path": tuple(sys.path),
        "environment": hash(frozenset(os.environ.items())),
        "recursion": sys.getrecursionlimit(),
        "random": random.getstate()[1][:3],
    }
