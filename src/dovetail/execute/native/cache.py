"""What is kept between processes, where, and for what it is valid.

An entry's name is a digest of the question (the text of a kernel, or what a probe asks) and of everything that its
answer depends on besides: processor, torch's build and libraries, LLVM, variables that choose kernels, this package.

| variable | meaning |
|---|---|
| DOVETAIL_CACHE_DIR | the folder; empty: nothing is kept. Default: `dovetail` in the user's folder for caches |
| DOVETAIL_CACHE_SIZE | how many bytes are kept, "256MiB" say; 0: nothing is kept |

Nothing is kept on systems other than Linux: there it is not known how to tell who may write to a folder, or which
libraries are loaded.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import re
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path

import torch

from dovetail.errors import BadOptionValue
from dovetail.execute.native.cache_folder import CacheFolder

FOLDER, SIZE = "DOVETAIL_CACHE_DIR", "DOVETAIL_CACHE_SIZE"
_DEFAULT_SIZE = "256MiB"
_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_LIBRARIES = re.compile(r"lib(torch_cpu|mkl\w*|m|mvec|sleef\w*)[-.\w]*\.so[.\d]*")
_CHOOSING = re.compile("MKL_.*|ATEN_CPU_CAPABILITY|GLIBC_TUNABLES|LD_PRELOAD")
_OF_PROCESSOR = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")


def recall(kind: str, question: str) -> bytes | None:
    """The answer that is kept, if there is one."""
    folder = cache_folder()
    return folder.read(_name(kind, question)) if folder is not None else None


def remember(kind: str, question: str, what: str, answer: bytes) -> None:
    """Keep an answer. what: a description for people."""
    folder = cache_folder()
    if folder is not None:
        folder.write(_name(kind, question), kind, what, made_for(), answer)


def cache_folder() -> CacheFolder | None:
    """The folder in use; None where nothing is kept. Raises: BadOptionValue for a size that is none."""
    size = most_bytes()
    path = folder_path()
    return _folder(path, size) if path is not None and size and made_for() else None


def state() -> str:
    """For people: the folder and what is in it, or why nothing is kept."""
    path = folder_path()
    if path is None:
        return f"off: {FOLDER} is empty, or there is no home folder"
    folder = cache_folder()
    if folder is None:
        return "off: it needs Linux, and llvmlite" if most_bytes() else f"off: {SIZE} is 0"
    problem = folder.problem()
    entries = folder.entries()
    total = sum(entry.size for entry in entries)
    told = f"not used, because {problem}" if problem else f"{len(entries)} entries, {total / 1e6:.1f} MB"
    return f"{folder.path}: {told}"


def folder_path() -> Path | None:
    """Where entries are kept; None where the user wants none, or has no such folder."""
    given = os.environ.get(FOLDER)
    if given == "":
        return None
    try:
        if given is not None:
            return Path(given).expanduser().absolute() / "native"
        base = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "dovetail" / "native"
    except (RuntimeError, OSError):
        return None


def most_bytes() -> int:
    """How many bytes are kept. Raises: BadOptionValue."""
    given = os.environ.get(SIZE, _DEFAULT_SIZE).strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", given)
    if match is None or match[2] not in _UNITS:
        expected = f'a number of bytes, or a text like "{_DEFAULT_SIZE}" (units {", ".join(filter(None, _UNITS))})'
        raise BadOptionValue(option=SIZE, value=given, reason="it is not a size", expected=expected)
    return int(Fraction(match[1]) * _UNITS[match[2]])


@cache
def made_for() -> str:
    """A digest of what answers depend on; "" where that is not known."""
    if sys.platform != "linux" or not hasattr(os, "geteuid"):
        return ""
    try:
        parts = [*_code(), *_compiler(), *_processor(), *_torch(), *_variables()]
    except (OSError, ImportError):
        return ""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _name(kind: str, question: str) -> str:
    return hashlib.sha256("\0".join((kind, made_for(), question)).encode()).hexdigest()


@cache
def _folder(path: Path, size: int) -> CacheFolder:
    return CacheFolder(path, size)


def _code() -> list[str]:
    """Of this package. Raises: FileNotFoundError where its sources are not there."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    if not sources:
        raise FileNotFoundError
    return [hashlib.sha256(source.read_bytes()).hexdigest() for source in sources]


def _compiler() -> list[str]:
    llvmlite, binding = importlib.import_module("llvmlite"), importlib.import_module("llvmlite.binding")
    target = (binding.get_default_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    return [llvmlite.__version__, str(binding.llvm_version_info), *target]


def _processor() -> list[str]:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        first = file.read(16_384).partition("\n\n")[0]
    lines = (line.partition(":") for line in first.splitlines())
    kept = [f"{name.strip()}:{value.strip()}" for name, _, value in lines if name.strip() in _OF_PROCESSOR]
    return [platform.machine(), *kept]


def _torch() -> list[str]:
    """Its build, and the files of the libraries that compute: the same version may have been built twice."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {line.split(None, 5)[5].rstrip("\n") for line in file if "/" in line}
    files = sorted(path for path in paths if _LIBRARIES.fullmatch(os.path.basename(path)))
    if not any("torch_cpu" in path for path in files):
        raise FileNotFoundError
    found = [os.stat(path) for path in files]
    builds = [f"{os.path.basename(p)} {s.st_size} {s.st_mtime_ns}" for p, s in zip(files, found, strict=True)]
    capability = torch.backends.cpu.get_cpu_capability()
    return [torch.__version__, str(torch.version.git_version), torch.__config__.show(), capability, *builds]


def _variables() -> list[str]:
    return sorted(f"{name}={value}" for name, value in os.environ.items() if _CHOOSING.fullmatch(name))
