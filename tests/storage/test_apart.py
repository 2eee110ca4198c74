"""A function in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from object_servers import ObjectServer

SCRIPT = """
import os
from meshwright.errors import InputError, MeshwrightError
from meshwright.storage import Remote
from meshwright.storage.apart import apart

def body():
    (Remote.at(URL) / "a").write(b"abc")
    return os.getpid(), (Remote.at(URL) / "a").read()

def fails():
    raise InputError("wrong", where="here", fix="so")

first, second = apart(body), apart(body)
assert first[0] != second[0] != os.getpid() and first[1] == b"abc"
try:
    apart(fails)
except InputError as error:
    assert (error.what, error.where, error.fix) == ("wrong", "here", "so")
    print("refused")
try:
    apart(lambda: os._exit(3))
except MeshwrightError as error:
    print(error.what)
if os.fork() == 0:  # this process has used no object storage, and so its children can
    assert body()[1] == b"abc"
    print("forked", flush=True)
    os._exit(0)
os.wait()
"""


def test_results_errors_and_forks_afterwards(s3: ObjectServer) -> None:
    script = f"URL = {str(s3.place())!r}\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["refused", "the process that used object storage ended with exit code 3", "forked"]
