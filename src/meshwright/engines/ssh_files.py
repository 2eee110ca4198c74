"""The commands of a job by ssh: one a host, in the order of the plan's nodes."""

from __future__ import annotations

import shlex

from meshwright.engines.request import HOSTS_FILE, PLAN_FILE, RANKS_FILE, SECRET_FILE, USUAL_PORT, JobFile, Request, comments, exports
from meshwright.engines.seating import check_count, hosts_text, racks_of_site, ranks_text, seat
from meshwright.errors import InputError
from meshwright.plan.export.heading import origin

COMMANDS_FILE = "commands.sh"

# The remote shell ends the ranks when its input ends: a lost connection, or a killed `meshwright launch`, leaves nothing running.
# The supervisor of another node than the first ends with that of the first: a lost connection to its host alone says nothing about the run.
FOLLOWING = """\
exec {command} < /dev/null"""
REMOTE = """\
exec 3<&0
{command} < /dev/null 3<&- &
ranks=$!
(cat <&3; kill -TERM $ranks) > /dev/null 2>&1 &
status=0; wait $ranks || status=$?
kill $! 2> /dev/null
exit $status"""


def ssh_files(request: Request) -> list[JobFile]:
    """The host file, the rank map, and the commands."""
    shape = request.shape
    check_count(shape, request.hosts, "--nodes, or ssh.hosts of the site file")
    seating = seat(shape, request.hosts, racks_of_site(request.site.racks), request.excluded)
    if seating is None:
        bad = [host for host in request.hosts if host in request.excluded]
        raise InputError(
            f"{shape.words}: the hosts do not allow it" + (f"; on the list of bad nodes: {', '.join(bad)}" if bad else ""),
            where="--nodes, or ssh.hosts of the site file",
            fix="name more hosts, or correct racks of the site file",
        )
    commands = [shlex.join(words) for words in ssh_commands(request, seating.hosts)]
    top = ["#!/bin/bash", *comments(["Made by meshwright launch.", *origin(request.plan), seating.words])]
    return [
        JobFile(HOSTS_FILE, hosts_text(shape, seating.hosts)),
        JobFile(RANKS_FILE, ranks_text(shape, seating)),
        JobFile(COMMANDS_FILE, "\n".join([*top, *commands, ""]), is_kept=False),
    ]


def ssh_commands(request: Request, hosts: tuple[str, ...]) -> list[list[str]]:
    """The words of ssh for each host."""
    ssh = request.site.ssh
    made = []
    for node, (host, size) in enumerate(zip(hosts, request.shape.sizes, strict=True)):
        address = f"{ssh.user}@{host}" if ssh.user else host
        made.append(["ssh", "-o", "BatchMode=yes", *ssh.options, address, remote_command(request, node, size, hosts[0])])
    return made


def remote_command(request: Request, node: int, size: int, first: str) -> str:
    """What a host runs."""
    site = request.site
    files, port = (str(request.folder / PLAN_FILE), str(request.folder / SECRET_FILE)), site.port or USUAL_PORT
    if request.keeps_going:
        command = request.supervised(*files, node=str(node), address=first, port=port)
    else:
        num_nodes = request.shape.num_nodes
        command = request.torchrun(*files, num_nodes=num_nodes, num_local=size, node=str(node), address=first, port=port)
    life = FOLLOWING if request.keeps_going and node else REMOTE
    lines = [f"cd {shlex.quote(site.workdir or str(request.folder))} || exit", *exports(site), life.format(command=command)]
    return "\n".join(lines)
