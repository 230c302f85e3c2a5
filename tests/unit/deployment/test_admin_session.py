"""What a person is reported when the server cannot be logged in to."""

from types import SimpleNamespace

import pytest
from nvflare.fuel.flare_api.api_spec import AuthenticationError, JobNotDone, NoConnection

from grandrounds.deployment import job_watch as module
from grandrounds.deployment.job_watch import admin_session
from grandrounds.errors import ConfigurationError, GrandRoundsError

PERSON = SimpleNamespace(kind="person", name="researcher@a.example", folder="kit", host="localhost", port=8002)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (NoConnection("timeout"), "no connection to the server at localhost:8002"),
        (AuthenticationError("unknown"), "does not accept researcher@a.example"),
        (
            TypeError("'None' is not an instance of 'bytes'"),
            "cannot be read in this process, .* try again in a new one",
        ),
    ],
)
def test_a_failed_login_is_reported_with_advice(monkeypatch, failure, message):
    def fail(*arguments, **options):
        raise failure

    monkeypatch.setattr(module, "new_secure_session", fail)
    with pytest.raises(GrandRoundsError, match=message), admin_session(PERSON):
        pytest.fail("there is no login")


def test_what_the_server_refuses_while_a_job_runs_is_reported(monkeypatch):
    session = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(module, "new_secure_session", lambda *arguments, **options: session)
    with pytest.raises(GrandRoundsError, match="the server refuses: job 7 is still running"), admin_session(PERSON):
        raise JobNotDone("job 7 is still running")


def test_a_mistake_within_the_session_is_not_the_servers(monkeypatch):
    session = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(module, "new_secure_session", lambda *arguments, **options: session)
    with pytest.raises(TypeError, match="mine"), admin_session(PERSON):
        raise TypeError("mine")


def test_a_sites_kit_submits_nothing():
    with (
        pytest.raises(ConfigurationError, match="is the kit of a site"),
        admin_session(SimpleNamespace(kind="site", folder="kit")),
    ):
        pytest.fail("there is no login")
