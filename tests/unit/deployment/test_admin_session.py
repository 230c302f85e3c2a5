"""What a person is reported when the server cannot be logged in to."""

from types import SimpleNamespace

import pytest
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import AuthenticationError, JobNotDone, JobNotFound, NoConnection

from grandrounds.deployment import job_watch as module
from grandrounds.deployment.job_watch import NoSuchJob, admin_session
from grandrounds.errors import ConfigurationError, GrandRoundsError


@pytest.fixture
def person(make_kit):
    """A kit whose certificates are in order."""
    return make_kit("person", name="researcher@a.example")


@pytest.fixture
def session(monkeypatch):
    """What a login gives: ``wait`` are the seconds that its commands wait for the server, and ``waited`` at its end."""
    logged_in = SimpleNamespace(wait=None, waited="open")

    def log_in(*arguments, command_timeout, **options):
        logged_in.wait = command_timeout
        return logged_in

    logged_in.unset_timeout = lambda: setattr(logged_in, "wait", None)
    logged_in.close = lambda: setattr(logged_in, "waited", logged_in.wait)
    monkeypatch.setattr(module, "new_secure_session", log_in)
    return logged_in


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (NoConnection("timeout"), "no connection to the server at localhost:8002"),
        (FLCommunicationError("failed to challenge server: timeout"), "no connection to the server at localhost:8002"),
        (AuthenticationError("unknown"), "does not accept researcher@a.example"),
        (
            TypeError("'None' is not an instance of 'bytes'"),
            "cannot be read in this process, .* try again in a new one",
        ),
    ],
)
def test_a_failed_login_is_reported_with_advice(monkeypatch, person, failure, message):
    def fail(*arguments, **options):
        raise failure

    monkeypatch.setattr(module, "new_secure_session", fail)
    with pytest.raises(GrandRoundsError, match=message), admin_session(person):
        pytest.fail("there is no login")


def test_a_busy_server_has_more_time_to_answer_than_flares_five_seconds_but_not_at_the_end(session, person):
    with admin_session(person):
        assert session.wait == module.COMMAND_SECONDS > 5
    assert session.waited is None


def test_what_the_server_refuses_while_a_job_runs_is_reported(session, person):
    with pytest.raises(GrandRoundsError, match="the server refuses: job 7 is still running"), admin_session(person):
        raise JobNotDone("job 7 is still running")


def test_a_job_that_the_server_does_not_know_is_an_error_of_its_own(session, person):
    with pytest.raises(NoSuchJob, match="the server refuses: no such job: 7"), admin_session(person):
        raise JobNotFound("no such job: 7")


def test_a_mistake_within_the_session_is_not_the_servers(session, person):
    with pytest.raises(TypeError, match="mine"), admin_session(person):
        raise TypeError("mine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda make: make("person", days=-3),
            r"client.crt expired 3 days ago: ask the operator for a new certificate",
        ),
        (lambda make: make("person", begins=2), "clock is slow"),
        (lambda make: damaged(make("person"), "rootCA.pem"), "rootCA.pem is not a certificate"),
        (lambda make: damaged(make("person"), "client.key"), "client.key cannot be read as a private key"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named_before_flare_sees_it(monkeypatch, make_kit, change, message):
    monkeypatch.setattr(module, "new_secure_session", lambda *arguments, **options: pytest.fail("FLARE was asked"))
    kit = change(make_kit)
    with pytest.raises(ConfigurationError, match=message), admin_session(kit):
        pytest.fail("there is no login")


def damaged(kit, name):
    """The kit with an empty file."""
    (kit.startup / name).write_bytes(b"")
    return kit


def test_a_sites_kit_submits_nothing(make_kit):
    with pytest.raises(ConfigurationError, match="is the kit of a site"), admin_session(make_kit("site")):
        pytest.fail("there is no login")
