"""A real text classification set that every Python brings along: the docstrings of its standard library.

Each sample is a docstring of a module, a class or a function, and the group of modules it is from. The sources are
parsed, not imported. A docstring that occurs twice is one sample; one that occurs in two groups is none.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

GROUPS = {
    "mail": "email mailbox mailcap mimetypes imaplib smtplib poplib nntplib",
    "network": "http urllib ftplib telnetlib socket socketserver ssl wsgiref xmlrpc cgi ipaddress webbrowser",
    "concurrency": "asyncio multiprocessing threading concurrent queue subprocess selectors sched",
    "windows": "tkinter",
    "drawing": "turtle colorsys",
    "numbers": "_pydecimal decimal fractions statistics numbers random secrets hmac bisect",
    "time": "datetime _pydatetime calendar zoneinfo _strptime locale timeit",
    "packaging": "distutils importlib imp pkgutil venv zipimport modulefinder sysconfig site",
    "text": "xml html difflib textwrap re encodings codecs json csv configparser pprint string",
    "testing": "unittest doctest",
    "files": "tarfile zipfile pathlib shutil tempfile _pyio bz2 gzip lzma os ntpath posixpath glob fnmatch fileinput",
    "debugging": "inspect pydoc pdb bdb traceback ast dis symtable tokenize trace profile pstats code logging warnings",
}
"""Top-level modules of the standard library by what they are for. Those that this Python lacks give nothing."""

MOST_OF_A_GROUP = 300
"""So that one group cannot be the answer to everything."""

_SHORTEST = 25
_ONE_TEST_IN = 4
_LEFT_OUT = {"test", "tests"}


@dataclass(frozen=True, slots=True)
class Sample:
    """A docstring, and the number of its group among `GROUPS`."""

    text: str
    group: int


@functools.cache
def standard_library_samples() -> tuple[Sample, ...]:
    """Every docstring once, at most `MOST_OF_A_GROUP` for each group, in an order that depends on the texts alone."""
    root = Path(sysconfig.get_path("stdlib"))
    groups: dict[str, set[int]] = {}
    texts: dict[str, str] = {}
    for number, modules in enumerate(GROUPS.values()):
        for module in modules.split():
            for text in docstrings_of(root, module):
                key = " ".join(text.lower().split())
                groups.setdefault(key, set()).add(number)
                texts.setdefault(key, " ".join(text.split()))
    counts = [0] * len(GROUPS)
    samples = []
    for key in sorted(texts, key=_digest):
        if len(groups[key]) > 1:
            continue
        (number,) = groups[key]
        counts[number] += 1
        if counts[number] <= MOST_OF_A_GROUP:
            samples.append(Sample(texts[key], number))
    return tuple(samples)


def split_samples(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Samples to train with, and samples to test with; the text alone decides which."""
    parts: tuple[list[Sample], list[Sample]] = [], []
    for sample in samples:
        parts[_digest(sample.text)[-1] % _ONE_TEST_IN == 0].append(sample)
    return parts


def docstrings_of(root: Path, module: str) -> Iterator[str]:
    """The docstrings in the sources of a top-level module below `root`, which may be a package or not be there."""
    for path in sorted([root / f"{module}.py", *(root / module).rglob("*.py")]):
        if not path.is_file() or _LEFT_OUT & set(path.relative_to(root).parts):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text is not None and len(text) >= _SHORTEST:
                    yield text


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
