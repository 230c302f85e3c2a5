"""Startup kits as FLARE's provisioning makes them, with certificates of any date and name, but in milliseconds."""

import inspect
import json
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from grandrounds.deployment.kit.read import read_kit

RESOURCES = {
    "format_version": 2,
    "class_list_enforcement_mode": "enforce",
    "class_allow_list": ["nvflare.app_common.workflows.fedavg.FedAvg"],
    "allow_log_streaming": True,
    "snapshot_persistor": {"args": {"storage": {"args": {"root_dir": "/tmp/nvflare/snapshot-storage"}}}},
    "components": [
        {"id": "resource_manager", "args": {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0}},
        {"id": "job_manager", "args": {"uri_root": "/tmp/nvflare/jobs-storage"}},
    ],
}
AUTHORIZATION = {"format_version": "1.0", "permissions": {"project_admin": "any", "lead": {"byoc": "any"}}}


class Authority:
    """A project's authority, which signs what it is asked to."""

    def __init__(self, project):
        self.project = project
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._signed(project, self._key, days=1000, authority=True)

    def issue(self, name, days, begins=-1.0, hosts=("localhost",), role=None):
        """A certificate and its key, in PEM form; with a ``role``, which may be empty, of somebody who signs jobs."""
        key = ec.generate_private_key(ec.SECP256R1()) if role is None else rsa.generate_private_key(65537, 2048)
        plain = serialization.NoEncryption()
        pem = serialization.Encoding.PEM
        secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        made = self._signed(name, key, days, begins=begins, hosts=hosts, role=role or "")
        return made.public_bytes(pem), secret

    def _signed(self, name, key, days, authority=False, begins=-1.0, hosts=(), role=""):
        now = datetime.now(UTC)
        begin, end = now + timedelta(days=begins), now + timedelta(days=days)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name, role))
            .issuer_name(_named(self.project))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(begin, end - timedelta(hours=1)))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if authority:
            usage = dict.fromkeys(inspect.signature(x509.KeyUsage).parameters, False) | {"key_cert_sign": True}
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(h) for h in hosts]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


def _named(name, role=""):
    """FLARE keeps a person's role as the unstructured name."""
    described = [x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role)] if role else []
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name), *described])


@pytest.fixture
def authorities():
    """The authority of each project in a test."""
    return {}


@pytest.fixture
def make_kit(tmp_path, authorities):
    """Makes a kit: ``make_kit("site", name=..., days=..., port=...)``; a project has one authority in a test."""

    def make(
        kind,
        name=None,
        project="study",
        days=300,
        begins=-1.0,
        port=8002,
        hosts=("localhost",),
        host="localhost",
        role=None,
    ):
        authority = authorities.setdefault(project, Authority(project))
        name = name or {"server": "server", "site": "hospital-a", "person": "ann@study.example"}[kind]
        folder = tmp_path / f"{project}-{name}"
        (folder / "local").mkdir(parents=True)
        (folder / "startup").mkdir()
        certificate, key = authority.issue(name, days, begins, hosts, role)
        part = "server" if kind == "server" else "client"
        (folder / "startup" / f"{part}.crt").write_bytes(certificate)
        (folder / "startup" / f"{part}.key").write_bytes(key)
        (folder / "startup" / f"{part}.key").chmod(0o600)
        root = authority.certificate.public_bytes(serialization.Encoding.PEM)
        (folder / "startup" / "rootCA.pem").write_bytes(root)
        server = {"name": project, "service": {"target": f"{host}:{port}"}, "identity": "server"}
        content = {
            "server": ("fed_server.json", {"servers": [server]}),
            "site": ("fed_client.json", {"servers": [server], "client": {"fqsn": name}}),
            "person": (
                "fed_admin.json",
                {"admin": {"username": name, "project_name": project, "host": host, "port": port}},
            ),
        }[kind]
        (folder / "startup" / content[0]).write_text(json.dumps(content[1]))
        (folder / "local" / "resources.json.default").write_text(json.dumps(RESOURCES))
        (folder / "local" / "authorization.json.default").write_text(json.dumps(AUTHORIZATION))
        return read_kit(folder)

    return make


@pytest.fixture(autouse=True)
def reviewed(monkeypatch):
    """The installed package's digest, fixed: while others edit it, two looks at it would differ; and a small library."""
    monkeypatch.setattr("grandrounds.deployment.kit.distributions.LIBRARIES", ("iniconfig",))
    for module in ("overlay", "doctor"):
        monkeypatch.setattr(f"grandrounds.deployment.kit.{module}.installed_digest", lambda: "a" * 64)
