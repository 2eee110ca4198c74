"""Files of a Slurm and of ssh servers on a lab: pure texts, so that a test can read them without being root.

Each lab has its own folder for them: keys, configuration, state, logs. Nothing of the system's own Slurm, munge or ssh is read or changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from meshwright.lab.description import LOGIN, Host, Lab

GPU = "pretended"  # the type of GPU that Slurm is told of
NODE_MB = 4000  # memory that Slurm is told of; it does not hand it out
LOST_S = 20  # after which Slurm gives a silent node up
URGENT = "urgent"  # a partition whose jobs take the nodes of others, which are queued again
DATABASE_USER = "slurm"
CREDENTIAL_S = 15  # Slurm waits so long before it starts a requeued job again; its own 120 s are for clocks that differ


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the files of a lab's services are."""

    path: Path

    @property
    def slurm_conf(self) -> Path:
        """Slurm's configuration; the others are looked for beside it."""
        return self.path / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """Where munge answers: a socket of the file system, so that every namespace reaches it."""
        return self.path / "munge" / "socket"

    @property
    def site(self) -> Path:
        """The site file for `meshwright launch`."""
        return self.path / "site.toml"

    @property
    def ssh_config(self) -> Path:
        """Options of ssh for the login host."""
        return self.path / "ssh" / "config"

    def hosts(self, *, is_login: bool) -> Path:
        """What stands in for /etc/hosts on the hosts, or on the login host."""
        return self.path / ("hosts.login" if is_login else "hosts")

    @property
    def database(self) -> Path:
        """The folder of the database of Slurm's accounts."""
        return self.path / "accounts"

    @property
    def database_socket(self) -> Path:
        """Where the database answers once it is ready."""
        return self.path / "accounts.socket"

    def log(self, name: str) -> Path:
        """What a host's services print."""
        return self.path / "log" / f"{name}.log"

    def device(self, number: int) -> Path:
        """The device file of a pretended GPU."""
        return self.path / "dev" / f"gpu{number}"


def slurm_conf(lab: Lab, folder: Folder) -> str:
    """Slurm's configuration: one node for each host, cores and GPUs as many as ranks."""
    at = folder.path
    values = {
        "ClusterName": lab.name,
        "SlurmctldHost": f"{LOGIN}({lab.management_address(None)})",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder.munge_socket},cred_expire={CREDENTIAL_S}",
        "SlurmctldPidFile": f"{at}/slurmctld.pid",
        "SlurmdPidFile": f"{at}/slurmd.%n.pid",
        "StateSaveLocation": f"{at}/state",
        "SlurmdSpoolDir": f"{at}/spool.%n",
        "SlurmctldLogFile": str(folder.log("slurmctld")),
        "SlurmdLogFile": str(folder.log("slurmd.%n")),
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "ReturnToService": "2",
        "SlurmdTimeout": str(LOST_S),
        "SlurmctldTimeout": "30",
        "MessageTimeout": "10",
        "KillWait": "10",
        "MinJobAge": "86400",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "sched_interval=5,batch_sched_delay=1,bf_interval=5",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",
        "TopologyPlugin": "topology/tree",
        "GresTypes": "gpu",
        "JobRequeue": "1",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "PropagateResourceLimits": "NONE",
    }
    if lab.has_accounting:
        values |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": lab.management_address(None),
            "AccountingStoragePass": str(folder.munge_socket),  # so Slurm calls the socket of munge here
            "AccountingStorageEnforce": "associations,qos",  # jobs need an account and a quality of service that exist, as at sites
            "AccountingStorageTRES": "gres/gpu",
            "JobAcctGatherType": "jobacct_gather/linux",
        }
    nodes = [
        f"NodeName={host} NodeAddr={lab.management_address(host)} CPUs={lab.num_ranks} RealMemory={NODE_MB} Gres=gpu:{GPU}:{lab.num_ranks}"
        for host in lab.hosts
    ]
    partitions = [
        f"PartitionName={lab.name} Nodes=ALL Default=YES State=UP MaxTime=INFINITE PriorityTier=1",
        f"PartitionName={URGENT} Nodes=ALL State=UP MaxTime=INFINITE PriorityTier=10",
    ]
    return _lines([*(f"{key}={value}" for key, value in values.items()), *nodes, *partitions])


def slurmdbd_conf(lab: Lab, folder: Folder) -> str:
    """The server of Slurm's accounts, beside its controller; only the login host reaches the database."""
    values = {
        "AuthType": "auth/munge",
        "AuthInfo": str(folder.munge_socket),
        "DbdHost": LOGIN,
        "DbdAddr": lab.management_address(None),
        "SlurmUser": "root",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StorageUser": DATABASE_USER,
        "StoragePass": DATABASE_USER,
        "StorageLoc": DATABASE_USER,
        "LogFile": str(folder.log("slurmdbd")),
        "PidFile": f"{folder.path}/slurmdbd.pid",
    }
    return _lines(f"{key}={value}" for key, value in values.items())


def database_sql() -> str:
    """What the database is told when it starts. Its port is open inside the login host's namespace only."""
    user = f"'{DATABASE_USER}'@'localhost'"
    return _lines(
        [
            f"CREATE DATABASE IF NOT EXISTS {DATABASE_USER};",
            f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{DATABASE_USER}';",
            f"GRANT ALL ON {DATABASE_USER}.* TO {user};",
        ]
    )


def topology_conf(lab: Lab) -> str:
    """Racks as switches below one spine."""
    racks = [f"SwitchName=rack{rack} Nodes={_listed(host for host in lab.hosts if host.rack == rack)}" for rack in range(lab.num_racks)]
    return _lines([*racks, f"SwitchName=spine Switches={','.join(f'rack{rack}' for rack in range(lab.num_racks))}"])


def gres_conf(lab: Lab, folder: Folder) -> str:
    """The pretended GPUs, the same files for every node."""
    files = ",".join(str(folder.device(number)) for number in range(lab.num_ranks))
    return f"NodeName={_listed(lab.hosts)} Name=gpu Type={GPU} File={files}\n"


def cgroup_conf() -> str:
    """Slurm 22.05 wants to know a kind of control groups, though nothing here uses them."""
    return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


def hosts_text(lab: Lab, *, is_login: bool) -> str:
    """Names and addresses: on hosts those of the job's network, on the login host those of the management network."""
    local = ["127.0.0.1 localhost", f"{lab.management_address(None)} {LOGIN}"]
    return _lines([*local, *(f"{lab.management_address(host) if is_login else lab.address(host)} {host}" for host in lab.hosts)])


def sshd_config(folder: Folder) -> str:
    """An ssh server that knows one key, and neither passwords nor the system's own users' keys."""
    at = folder.ssh_config.parent
    values = {
        "Port": "22",
        "HostKey": f"{at}/host_key",
        "AuthorizedKeysFile": f"{at}/key.pub",
        "PidFile": "none",
        "StrictModes": "no",  # the folder is root's own, and below one that others may enter
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "PrintMotd": "no",
    }
    return _lines(f"{key} {value}" for key, value in values.items())


def ssh_config(lab: Lab, folder: Folder) -> str:
    """Options of ssh on the login host: its key, and the hosts' keys."""
    at = folder.ssh_config.parent
    names = " ".join(str(host) for host in lab.hosts)
    lines = ["User root", f"IdentityFile {at}/key", "IdentitiesOnly yes", f"UserKnownHostsFile {at}/known_hosts", "LogLevel ERROR"]
    return _lines([f"Host {names}", *(f"  {line}" for line in lines)])


def known_hosts(lab: Lab, host_key: str) -> str:
    """The hosts with the key that all of them have."""
    names = ",".join(f"{host},{lab.management_address(host)}" for host in lab.hosts)
    return f"{names} {' '.join(host_key.split()[:2])}\n"


def site_text(lab: Lab, folder: Folder, python: str) -> str:
    """The site file with which `meshwright launch` submits jobs to this lab."""
    lines = [
        f"python = {json.dumps(python)}",
        f'network_interface = "{lab.interface}"',
        'environment = { OMP_NUM_THREADS = "1" }',
    ]
    if lab.has_slurm:
        lines += ["", "[slurm]", f'partition = "{lab.name}"', f'gres = "gpu:{lab.num_ranks}"', 'wait_for_racks = "00:01:00"']
    if lab.has_ssh:
        hosts = ", ".join(f'"{host}"' for host in lab.hosts)
        lines += ["", "[ssh]", f"hosts = [{hosts}]", f'options = ["-F", {json.dumps(str(folder.ssh_config))}]']
    return _lines(lines)


def _listed(hosts: Iterable[Host]) -> str:
    return ",".join(str(host) for host in hosts)


def _lines(lines: Iterable[str]) -> str:
    return "\n".join([*lines, ""])
