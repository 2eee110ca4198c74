"""Hosts of a lab that run services: Slurm's node daemons, ssh servers, and the login host with Slurm's controller.

A host is one process tree in namespaces of its own for processes, mounts and its name, besides that of the network. Killing its first
process kills everything on it at once, as a power failure would. All of them are in the lab's network namespaces, by which `lab down`
finds them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from meshwright.errors import InputError, MeshwrightError, nearest
from meshwright.files import write_whole
from meshwright.lab import services, system
from meshwright.lab.description import LOGIN, Host, Lab
from meshwright.lab.network import Command
from meshwright.lab.services import Folder

SLURM_TOOLS = {
    **dict.fromkeys(("slurmctld", "slurmd", "sinfo", "scontrol", "sbatch", "srun"), "slurm-wlm"),
    **dict.fromkeys(("munged", "mungekey"), "munge"),
}
ACCOUNTING_TOOLS = {
    "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-client",
    **dict.fromkeys(("mariadbd", "mariadb-install-db"), "mariadb-server"),
}
SMALL_DATABASE = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M")
SSH_TOOLS = {"sshd": "openssh-server", **dict.fromkeys(("ssh", "ssh-keygen"), "openssh-client")}
SSHD_FOLDER = Path("/run/sshd")  # sshd does not start without it; the system's own service makes it
READY_S = 120.0  # a quiet machine needs 5 to 15
ANSWER_S = 15.0  # for one question to a service; then it is asked again
POLL_S = 0.25
NULL_DEVICE = os.makedev(1, 3)  # what stands in for a GPU: Slurm only looks whether it is a device
# The first process of a host: it has the name and the table of hosts, starts the services, and waits for them.
FIRST = 'hostname "$0" && mount --bind "$1" /etc/hosts && eval "$2"; wait'
ENTER = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


def folder_of(lab_name: str, folder: Path) -> Folder:
    """The folder of a lab's services; `folder` is that of the labs' files."""
    return Folder(folder / f"services-{lab_name}")


def check_services(lab: Lab) -> None:
    """Raise an error that says what must be installed."""
    accounting = ACCOUNTING_TOOLS if lab.has_accounting else {}
    wanted = {**(SLURM_TOOLS if lab.has_slurm else {}), **accounting, **(SSH_TOOLS if lab.has_ssh else {})}
    what = " and ".join(name for name, has in (("Slurm", lab.has_slurm), ("ssh servers", lab.has_ssh)) if has)
    system.check_tools(wanted, f"a lab with {what}")


def start(lab: Lab, at: Folder) -> None:
    """Write the files of all services, start the hosts, and wait until they answer."""
    at.path.mkdir(mode=0o755, parents=True)
    for name in ("log", "dev", "munge", "state", "ssh"):
        (at.path / name).mkdir(mode=0o755)
    write_files(lab, at)
    _start(lab, at, None)
    if lab.has_slurm:
        _wait(at.munge_socket.exists, "munge", at.log(LOGIN))
    for host in lab.hosts:
        start_host(lab, at, host)
    if lab.has_slurm:
        _wait(lambda: node_states(lab, at) == {str(host): "idle" for host in lab.hosts}, "Slurm", at.log("slurmctld"))
    if lab.has_ssh:
        _wait(lambda: all(_answers(lab, at, host) for host in lab.hosts), "ssh", at.log(str(lab.hosts[-1])))


def write_files(lab: Lab, at: Folder) -> None:
    """Write configuration and keys."""
    for is_login in (False, True):
        write_whole(at.hosts(is_login=is_login), services.hosts_text(lab, is_login=is_login))
    write_whole(at.site, services.site_text(lab, at, sys.executable))
    if lab.has_slurm:
        for name, text in (
            ("slurm.conf", services.slurm_conf(lab, at)),
            ("topology.conf", services.topology_conf(lab)),
            ("gres.conf", services.gres_conf(lab, at)),
            ("cgroup.conf", services.cgroup_conf()),
        ):
            write_whole(at.path / name, text)
        for number in range(lab.num_ranks):
            os.mknod(at.device(number), stat.S_IFCHR | 0o600, NULL_DEVICE)
        system.execute(("mungekey", "--create", f"--keyfile={at.munge_socket.parent}/key"))
    if lab.has_accounting:
        _write_accounts(lab, at)
    if lab.has_ssh:
        _write_ssh(lab, at)


def _write_accounts(lab: Lab, at: Folder) -> None:
    path = at.path / "slurmdbd.conf"
    write_whole(path, services.slurmdbd_conf(lab, at))
    path.chmod(0o600)  # slurmdbd insists: the password of its database is in it
    write_whole(at.path / "accounts.sql", services.database_sql())
    system.execute(("mariadb-install-db", "--no-defaults", f"--datadir={at.database}", "--user=root", "--skip-test-db", *SMALL_DATABASE))


def _write_ssh(lab: Lab, at: Folder) -> None:
    folder = at.ssh_config.parent
    for name in ("host_key", "key"):
        system.execute(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"meshwright lab {lab.name}", "-f", str(folder / name)))
    write_whole(folder / "sshd_config", services.sshd_config(at))
    write_whole(at.ssh_config, services.ssh_config(lab, at))
    write_whole(folder / "known_hosts", services.known_hosts(lab, (folder / "host_key.pub").read_text(encoding="ascii")))
    if not SSHD_FOLDER.exists():
        (folder / "made").touch()  # so that `remove` takes it away again
        SSHD_FOLDER.mkdir(mode=0o755)


def start_host(lab: Lab, at: Folder, host: Host) -> None:
    """Start the services of a host, as if it were switched on; one that runs is left alone."""
    if not system.processes(lab.namespace(host)):
        _start(lab, at, host)


def stop_host(lab: Lab, host: Host) -> int:
    """Kill everything on a host at once, as a power failure would; return how many processes there were."""
    return system.end_processes([lab.namespace(host)])


def _start(lab: Lab, at: Folder, host: Host | None) -> None:
    """Start the first process of a host, or of the login host; it outlives this command."""
    name = LOGIN if host is None else str(host)
    namespace = lab.login if host is None else lab.namespace(host)
    apart = ("unshare", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child")
    hosts = str(at.hosts(is_login=host is None))
    commands = " ".join(f"{shlex.join(words)} &" for words in service_commands(lab, at, host))
    words = ("nsenter", f"--net=/run/netns/{namespace}", *apart, "sh", "-c", FIRST, name, hosts, commands)
    with open(at.log(name), "ab") as log:
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/", env=environment(lab, at, os.environ)
        )


def service_commands(lab: Lab, at: Folder, host: Host | None) -> Iterator[Command]:
    """What a host, or the login host, keeps running."""
    if lab.has_slurm and host is None:
        folder = at.munge_socket.parent
        files = {"key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        yield "munged", "--foreground", f"--socket={at.munge_socket}", *(f"--{key}={folder / name}" for key, name in files.items())
        if lab.has_accounting:
            yield from _account_commands(lab, at)
        else:
            yield "slurmctld", "-D", "-f", str(at.slurm_conf)
    elif lab.has_slurm:
        yield "slurmd", "-D", "-N", str(host), "-f", str(at.slurm_conf)
    if lab.has_ssh and host is not None:
        yield shutil.which("sshd", path=system.PATH) or "sshd", "-D", "-e", "-f", str(at.ssh_config.parent / "sshd_config")


def _account_commands(lab: Lab, at: Folder) -> Iterator[Command]:
    """The database, the server of the accounts once the database answers, and the controller once its cluster is in the accounts."""
    files = {
        "datadir": at.database,
        "socket": at.database_socket,
        "pid-file": at.path / "accounts.pid",
        "init-file": at.path / "accounts.sql",
    }
    where = (f"--{key}={value}" for key, value in files.items())
    yield "mariadbd", "--no-defaults", "--user=root", "--bind-address=127.0.0.1", *where, *SMALL_DATABASE
    yield "sh", "-c", 'until [ -S "$0" ]; do sleep 0.2; done; exec slurmdbd -D', str(at.database_socket)
    known = 'until sacctmgr --immediate --quiet add cluster "$0"; do sleep 0.5; done; exec slurmctld -D -f "$1"'
    yield "sh", "-c", known, lab.name, str(at.slurm_conf)


def environment(lab: Lab, at: Folder, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of services, and of commands on the login host."""
    kept = {key: value for key, value in base.items() if not key.startswith(("SLURM_", "SBATCH_"))}
    slurm = {"SLURM_CONF": str(at.slurm_conf)} if lab.has_slurm else {}
    return {**kept, **slurm, "PATH": system.PATH, "MESHWRIGHT_LAB": lab.name}


def login_command(lab: Lab, at: Folder, words: tuple[str, ...]) -> Command:
    """A command as it is started on the login host."""
    hosts = str(at.hosts(is_login=True))
    command = (sys.executable, "-m", "meshwright", *words[1:]) if words[:1] == ("meshwright",) else words
    return "nsenter", f"--net=/run/netns/{lab.login}", "unshare", "--uts", "--mount", "sh", "-c", ENTER, LOGIN, hosts, *command


def node_states(lab: Lab, at: Folder) -> dict[str, str]:
    """What Slurm says of its nodes: idle, allocated, down; nothing while it does not answer."""
    done = _asked(lab, at, ("sinfo", "--noheader", "--Node", "--format=%N %T"))
    rows = [line.split() for line in done.stdout.splitlines()] if done and done.returncode == 0 else []
    return {row[0]: row[1] for row in rows if len(row) == 2}


def _answers(lab: Lab, at: Folder, host: Host) -> bool:
    done = _asked(lab, at, ("ssh", "-F", str(at.ssh_config), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", str(host), "true"))
    return done is not None and done.returncode == 0


def _asked(lab: Lab, at: Folder, words: tuple[str, ...]) -> subprocess.CompletedProcess[str] | None:
    """A command on the login host that has ended; None if it has not within a while, as on a machine that has too much to do."""
    try:
        return subprocess.run(
            login_command(lab, at, words),
            capture_output=True,
            text=True,
            env=environment(lab, at, os.environ),
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _wait(is_ready: Callable[[], bool], what: str, log: Path) -> None:
    until_s = time.monotonic() + READY_S
    while not is_ready():
        if time.monotonic() > until_s:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
            raise MeshwrightError(f"{what} did not start within {READY_S:g} s: {lines[-1] if lines else 'it said nothing'}", where=str(log))
        time.sleep(POLL_S)


def check_host(lab: Lab, name: str) -> Host:
    """The host of that name, on a lab with services."""
    if not lab.has_login:
        raise InputError(f"the hosts of lab {lab.name!r} run nothing by themselves", where="lab", fix="make a lab with --slurm or --ssh")
    known = {str(host): host for host in lab.hosts}
    if name not in known:
        raise InputError(f"no host is named {name!r}", where="HOST", fix=nearest(name, known))
    return known[name]


def remove(at: Folder) -> None:
    """Remove all files of a lab's services; its processes have ended."""
    if (at.ssh_config.parent / "made").exists() and SSHD_FOLDER.is_dir() and not any(SSHD_FOLDER.iterdir()):
        SSHD_FOLDER.rmdir()
    shutil.rmtree(at.path, ignore_errors=True)
