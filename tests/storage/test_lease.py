"""One writer at a time in object storage, also after a writer that crashed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from object_servers import FaultProxy, ObjectServer

from meshwright.storage import Remote, StorageError
from meshwright.storage.lease import LEASE_S, LOOK_S, Held, Lease, Owner, release_ended

ELSEWHERE = Owner(id="ab", host="far", machine="another", process=1)


def held_by(place: Remote, owner: Owner, number: int = 1) -> Remote:
    """The lease of another process."""
    lease = place / f".lease-{number:08d}.json"
    lease.write(json.dumps(asdict(owner)).encode())
    return lease


def no_waiting(seconds: float) -> None:
    pytest.fail("there is nothing to wait for")


def quiet(text: str) -> None:
    """Nothing is printed."""


@pytest.mark.parametrize("server", ["s3", "azure"])
def test_the_second_gets_it_when_the_first_releases_it(server: str, request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue(server).place()
    first = Lease.take(place, wait=no_waiting, told=quiet)
    first.renew()
    first.check()
    first.release()
    second = Lease.take(place, wait=no_waiting, told=quiet)
    assert place.files().keys() == {".lease-00000002.json"}
    second.check()
    assert not second.is_lost and second.owner.id != first.owner.id


def test_one_that_is_renewed_is_held(s3: ObjectServer) -> None:
    place = s3.place()
    lease = held_by(place, ELSEWHERE)
    told: list[str] = []

    def renews(seconds: float) -> None:
        lease.write(json.dumps(asdict(replace(ELSEWHERE, beat=1))).encode())

    with pytest.raises(Held, match="being written by process 1 on far"):
        Lease.take(place, wait=renews, told=told.append)
    assert len(told) == 1 and "waiting 30 s" in told[0]


def test_one_that_is_not_renewed_is_taken_over_after_its_time(s3: ObjectServer) -> None:
    place = s3.place()
    held_by(place, ELSEWHERE, number=7)
    waits: list[float] = []
    lease = Lease.take(place, wait=waits.append, told=quiet)
    assert sum(waits) == pytest.approx(LEASE_S) and set(waits) == {LOOK_S}
    assert place.files().keys() == {".lease-00000008.json"}
    lease.check()


def test_a_process_of_this_machine_that_has_ended_is_not_waited_for(s3: ObjectServer) -> None:
    place = s3.place()
    held_by(place, replace(Owner.this_process(), process=2**22 + 1))  # larger than any process number
    lease = Lease.take(place, wait=no_waiting, told=quiet)
    assert not lease.is_lost


def test_the_old_owner_learns_that_it_was_replaced(s3: ObjectServer) -> None:
    place = s3.place()
    old = Lease.take(place, wait=no_waiting, told=quiet)
    held_by(place, ELSEWHERE, number=2)
    old.renew()
    assert old.is_lost
    with pytest.raises(Held, match="another process has taken over"):
        old.check()
    old.release()
    with pytest.raises(Held):
        Lease.take(place, wait=lambda seconds: held_by(place, replace(ELSEWHERE, beat=5), number=2) and None, told=quiet)


def test_only_one_of_several_takes_a_free_one(s3: ObjectServer) -> None:
    place = s3.place()
    found = [Lease.take(place, wait=no_waiting, told=quiet)]
    with pytest.raises(Held):
        found.append(Lease.take(place, wait=lambda seconds: found[0].renew(), told=quiet))
    assert len(found) == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"id": 1}'])
def test_what_is_no_lease_of_ours_does_not_stop_a_run(s3: ObjectServer, content: bytes) -> None:
    place = s3.place()
    (place / ".lease-00000003.json").write(content)
    Lease.take(place, wait=no_waiting, told=quiet)
    assert place.files().keys() == {".lease-00000004.json"}


def test_the_lease_of_a_dead_process_is_released_by_the_one_that_started_it(s3: ObjectServer) -> None:
    place = s3.place()
    lease = Lease.take(place, wait=no_waiting, told=quiet)
    release_ended(place, "somebody else")
    assert b'"is_released": false' in (place / ".lease-00000001.json").read()
    release_ended(place, lease.owner.id)
    assert b'"is_released": true' in (place / ".lease-00000001.json").read()


def test_a_dead_server_is_an_error(proxy: FaultProxy, s3: ObjectServer) -> None:
    place = s3.place(patience_s=0.2)
    proxy.faults.is_dead = True
    with pytest.raises(StorageError, match="did not answer"):
        Lease.take(place, wait=no_waiting, told=quiet)
