"""What the packages are given, and what they never do.

Versions: pyproject.toml and constraints.txt agree; `.ci/versions` runs the tests on other versions.
Code: none is made of text or data. Network: none, except where TFDS downloads for `train prepare`.
"""

import ast
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from train.streams import pickles

from .train.tiny_data import write

pytestmark = pytest.mark.ci

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("tag_optax", "train", "benchmarks")
SOURCES = sorted(
    str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")
)


# Versions.


def floors() -> Iterator[Requirement]:
    """Every dependency of every group, without the groups themselves."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group in (project["dependencies"], *project["optional-dependencies"].values()):
        for requirement in map(Requirement, group):
            if requirement.name != project["name"]:
                yield requirement


def test_every_dependency_has_a_floor():
    """Without one, `.ci/versions oldest` would take the first release of all."""
    without = [str(r) for r in floors() if {spec.operator for spec in r.specifier} != {">="}]
    assert not without


def test_constraints_satisfy_the_floors():
    lines = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {canonicalize_name(name): version for name, version in lines}
    for requirement in floors():
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(version), f"{requirement} is not {version}"


# Code.

# Modules whose purpose is to make objects or code out of bytes, and builtins that do so.
MAKERS = {"cloudpickle", "code", "dill", "joblib", "jsonpickle", "marshal", "shelve", "yaml"}
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
NETWORK = {
    *("aiohttp", "asyncio", "ftplib", "http", "httpx", "imaplib", "poplib", "requests", "smtplib"),
    *("socket", "socketserver", "ssl", "telnetlib", "urllib", "urllib3", "webbrowser", "xmlrpc"),
}
# Keywords that must have this value wherever they stand, and functions that must be given them.
KEYWORDS = {"allow_pickle": False, "shell": False, "weights_only": True}
REQUIRED = {"numpy.load": "allow_pickle", "torch.load": "weights_only"}
ALLOWED = {
    # The exception alone, which torch raises.
    ("train/models/pretrained.py", "pickle.UnpicklingError"),
    ("train/streams/pickles.py", "pickle.UnpicklingError"),
    # Its `find_class` lets arrays and plain containers through, and nothing else: see below.
    ("train/streams/pickles.py", "pickle.Unpickler"),
    # A job for a process of the pool, by a file without a name that the two share.
    ("train/launch/processes.py", "cloudpickle"),
    ("train/launch/processes.py", "cloudpickle.dump"),
    ("train/launch/worker.py", "cloudpickle"),
    ("train/launch/worker.py", "cloudpickle.load"),
}


def imports(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: {"np": "numpy", "load": "pickle.load"}."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or whole] = whole
                found.setdefault(alias.name, alias.name)  # `import a.b` binds `a`, and imports both
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not understood here"
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def faults(source: str, path: str = "") -> list[str]:
    """What a file does that none may do."""
    tree = ast.parse(source)
    imported = imports(tree)
    modules = {name.partition(".")[0] for name in imported.values()}
    found = [
        f"imports {name}"
        for name in sorted(modules & (MAKERS | NETWORK))
        if (path, name) not in ALLOWED
    ]

    def whole_name(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{whole_name(node.value)}.{node.attr}"
        return imported.get(node.id, node.id) if isinstance(node, ast.Name) else "?"

    for node in ast.walk(tree):
        name = whole_name(node)
        if name in BUILTINS or name.startswith("builtins.") or name in SHELLS:
            found.append(f"{node.lineno}: {name}")
        if re.fullmatch(r"(_|cloud)?pickle\.\w+", name) and (path, name) not in ALLOWED:
            found.append(f"{node.lineno}: {name}")
        if isinstance(node, ast.Call):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            for keyword, value in given.items():
                wanted = KEYWORDS.get(keyword or "")
                if wanted is not None and getattr(value, "value", None) is not wanted:
                    found.append(f"{node.lineno}: {keyword} is not {wanted}")
            needed = REQUIRED.get(whole_name(node.func))
            if needed and needed not in given:
                found.append(f"{node.lineno}: {whole_name(node.func)} without {needed}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "run = exec",
        "import builtins\nbuiltins.eval('1')",
        "import pickle\npickle.load(file)",
        "from pickle import loads as read\nread(data)",
        "import pickle as p\nclass Reader(p.Unpickler): pass",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=trusted)",
        "import numpy as np\nnp.load(path)",
        "import cloudpickle\ncloudpickle.load(file)",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import yaml",
        "from yaml import load",
        "import marshal",
        "def f():\n    import shelve",
        "import os\nos.system('ls')",
        "from os import popen\npopen('ls')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess\nsubprocess.getoutput('ls')",
        "import socket",
        "import urllib.request",
        "from urllib import request",
        "from http.client import HTTPConnection",
        "import requests as r",
        "import ftplib",
    ],
)
def test_faults_are_found(source):
    assert faults(source)


@pytest.mark.parametrize("path", SOURCES)
def test_no_code_from_data_and_no_network(path):
    assert not faults((ROOT / path).read_text(), path)


def test_the_one_unpickler_is_restricted(tmp_path):
    tree = ast.parse(pathlib.Path(pickles.__file__).read_text())
    (use,) = (n for n in ast.walk(tree) if ast.unparse(n) == "pickle.Unpickler")
    (reader,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and use in n.bases)
    assert "find_class" in vars(getattr(pickles, reader.name))
    with (tmp_path / "evil.pkl").open("wb") as file:
        pickle.dump(os.getcwd, file)
    with pytest.raises(pickles.UserError, match="only arrays are allowed"):
        pickles.load_arrays(tmp_path / "evil.pkl")


def test_a_worker_unpickles_what_it_is_given_alone():
    """On standard input, by the process that started it."""
    tree = ast.parse((ROOT / "train/launch/worker.py").read_text())
    calls = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert [call for call in calls if "pickle" in call] == ["cloudpickle.load(sys.stdin.buffer)"]


def test_the_library_imports_what_it_declares():
    """And numpy, which jax brings. Nothing of `optax._src`, which changes with every version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {Requirement(line).name for line in project["dependencies"]}
    allowed = declared | {"numpy", "tag_optax"} | sys.stdlib_module_names
    for path in SOURCES:
        tree = ast.parse((ROOT / path).read_text())
        names = imports(tree).values()
        assert not [name for name in names if "_src" in name.split(".")], path
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "_src"]
        if path.startswith("tag_optax/"):
            assert {name.partition(".")[0] for name in names} <= allowed, path


# Network.

# Read by every Python process that finds it, the children of the tested one too. What is refused is
# also noted, since the caller may catch the error.
REFUSE = """
import os, sys

def note(line):
    with open(os.environ["NETWORK_LOG"], "a") as log:
        log.write(line + "\\n")

def refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        where = arguments[-1]
        if not isinstance(where, tuple):  # The file of a Unix socket.
            return
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        where = arguments[0]
    else:
        return
    note(f"refused {event} {where}")
    raise PermissionError(f"no network: {event} {where}")

note("started")
sys.addaudithook(refuse)
"""


@pytest.fixture
def offline(tmp_path):
    """Runs Python with sockets refused: how it ended, and what was refused."""
    (tmp_path / "offline").mkdir()
    (tmp_path / "offline/sitecustomize.py").write_text(REFUSE)
    log = tmp_path / "network.log"
    settings = {
        "NETWORK_LOG": str(log),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "offline"), str(ROOT)]),
        "TAG_OPTAX_CACHE": str(tmp_path / "cache"),
    }

    def run(*arguments: object) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        log.write_text("")
        ended = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | settings,
            capture_output=True,
            text=True,
        )
        lines = log.read_text().splitlines()
        assert "started" in lines
        return ended, [line for line in lines if line != "started"]

    return run


@pytest.mark.parametrize(
    "attempt",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.socket().connect(('192.0.2.1', 80))",
        "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 80))",
        "import urllib.request; urllib.request.urlopen('http://example.org')",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import socket; "
        'socket.getaddrinfo("example.org", 80)\'], check=True)',
    ],
)
def test_the_network_is_refused(offline, attempt):
    ended, refused = offline("-c", attempt)
    assert ended.returncode == 1
    assert len(refused) == 1


def test_training_and_reporting_use_no_network(offline, tmp_path):
    quick = ("--num-tasks", 2, "--max-examples", 50, "--hidden", 8, "--optimizer", "sgd")
    command = ("run", "--stream", "rotated-digits", *quick, "--out", tmp_path / "runs")
    ended, refused = offline("-m", "train", *command)
    assert (ended.returncode, refused) == (0, []), ended.stderr
    assert list((tmp_path / "runs").glob("**/report/report.html"))


def test_reading_prepared_data_uses_no_network(offline, tmp_path):
    write(tmp_path / "data", "mnist")
    script = (
        "import sys; from train.cli.main import main; from train.streams import STREAMS;"
        "assert main(['data', '--data-dir', sys.argv[1]]) == 0;"
        "print(len(STREAMS['rotated-mnist'].open([sys.argv[1]]).tasks))"
    )
    ended, refused = offline("-c", script, tmp_path / "data")
    assert (ended.returncode, refused) == (0, []), ended.stderr
    assert ended.stdout.endswith("\n10\n")
