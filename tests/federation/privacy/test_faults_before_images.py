"""What keeps a site from a task before it reads an image is named to the server; what comes later is not."""

import errno
from collections import namedtuple

import pytest

from grandrounds.deployment.operation.status import read_trail
from grandrounds.errors import CheckpointError, ConfigurationError, DataError, Fault, MessageError
from grandrounds.federation.site import outcomes
from grandrounds.federation.site.data import SiteAccess
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.federation.site.outcomes import LEAST_ROOM, require_room
from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.messages import TRAIN

SITES = ["site-1", "site-2"]
ERRORS = {
    Fault.DATA: DataError("patient 4711 has no label"),
    Fault.OPTIONS: ConfigurationError("patient 4711 is named"),
    Fault.TASK: MessageError("patient 4711 is in the message"),
    Fault.STATE: CheckpointError("patient-4711.pt is damaged"),
    Fault.DISK: OSError(errno.ENOSPC, "no room for patient 4711"),
    Fault.OTHER: KeyError("patient 4711"),
}
PLAIN = {"kind": "model_update", "name": "update", "treatment": "unmodified"}


@pytest.fixture
def failing(monkeypatch):
    """Let the training of site-1 fail before or after its images are read."""

    def install(method, owner, error):
        work = getattr(owner, method)

        def broken(*arguments, **named):
            found = work(*arguments, **named)
            context = found[0] if isinstance(found, tuple) else found
            if context.site == "site-1" and tasks[-1] == TRAIN:
                raise error
            return found

        monkeypatch.setattr(owner, method, broken)

    tasks, execute = [], SiteExecutor.execute
    monkeypatch.setattr(
        SiteExecutor, "execute", lambda *arguments: (tasks.append(arguments[1]), execute(*arguments))[1]
    )
    return {
        "before": lambda error: install("_prepared", SiteExecutor, error),
        "after": lambda error: install("with_images", SiteAccess, error),
    }


@pytest.fixture
def outcome(tiny, run, tmp_path, install, policy_of):
    """Why the server drops site-1, what is booked, and the cause in the site's trail."""

    def go(noise):
        local = tmp_path / "flare" / "site-1" / "local"
        install(local, policy_of() if noise else policy_of(releases=[PLAIN]))
        found = run(tiny("ssfl", "controller.rounds=1", "controller.min_sites=1"), tmp_path, sites=SITES)
        (entry,) = found.summary["rounds"]
        bookings = Ledger(local / "privacy", "site-1").content().bookings
        (failed,) = read_trail(local / "privacy").failures.values()
        assert not list((local / "privacy" / "open").glob("*"))
        return entry["dropped"].get("site-1"), len(bookings), failed["cause"]

    return go


@pytest.mark.parametrize("noise", [True, False])
@pytest.mark.parametrize("fault", Fault)
def test_a_fault_before_the_first_image_is_named_by_its_class_and_costs_nothing(fault, noise, failing, outcome):
    failing["before"](ERRORS[fault])
    reason, booked, cause = outcome(noise)
    assert (reason, booked) == (fault.value, 0)
    assert "4711" in cause


@pytest.mark.parametrize("noise", [True, False])
@pytest.mark.parametrize("fault", Fault)
def test_a_fault_after_the_first_image_is_the_same_whatever_it_is_and_is_booked(fault, noise, failing, outcome):
    failing["after"](ERRORS[fault])
    reason, booked, cause = outcome(noise)
    assert (reason, booked) == (None if noise else "the site replied EXECUTION_EXCEPTION", 1)
    assert "4711" in cause


def test_a_full_disk_is_found_before_an_image_is_read(tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(outcomes.shutil, "disk_usage", lambda folder: usage(LEAST_ROOM - 1))
    with pytest.raises(OSError, match="less than 64 MiB free") as caught:
        require_room(tmp_path / "not" / "there")
    assert Fault.of(caught.value) is Fault.DISK
    monkeypatch.setattr(outcomes.shutil, "disk_usage", lambda folder: usage(LEAST_ROOM))
    require_room(tmp_path)


def test_no_fault_has_the_words_of_a_refusal():
    assert not set(Fault) & set(Reason)
