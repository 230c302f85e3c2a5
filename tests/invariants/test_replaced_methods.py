"""FLARE's private methods that this project replaces are those that it was written for.

The page ``docs/security/flare.md`` says of each why, and what breaks without it. A FLARE whose method has another digest
turns this red: read the method, adapt what replaces it, and renew the digest.
"""

import hashlib
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "custom" / "grandrounds"
REPLACED = {
    "nvflare.private.fed.server.job_meta_validator:JobMetaValidator.validate": "4f89fc2e8266348b",
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell.start": "627d734bdda7bbe3",
    "nvflare.fuel.f3.cellnet.cell:Cell._send_request": "0e76a96e14900fee",
    "nvflare.fuel.sec.audit:Auditor.add_event": "e6f92040fede2cf5",
    "nvflare.fuel.sec.audit:Auditor.add_job_event": "2f7b18d0a98792c6",
    "nvflare.fuel.f3.sfm.sfm_conn:SfmConnection.send_handshake": "d36eed02bb82edab",
    "nvflare.fuel.f3.sfm.sfm_endpoint:SfmEndpoint.add_connection": "45d852154562d14c",
    "nvflare.fuel.f3.sfm.conn_manager:ConnManager.update_endpoint": "a52c5747b52fac71",
    "nvflare.fuel.f3.streaming.byte_receiver:RxTask._schedule_remove_task": "c8e56d1be1dc81bf",
    "nvflare.fuel.f3.drivers.aio_http_driver:AioHttpDriver.connect": "56bdb5e07b587acd",
    "nvflare.apis.impl.wf_comm_server:WFCommServer.client_is_active": "f1c0044211ab41d0",
}
"""Digests of their source in FLARE 2.9.0."""


def source_digest(name):
    """Of the method as FLARE has it: in a process of its own, where nothing is replaced."""
    module, _, path = name.partition(":")
    owner, _, method = path.partition(".")
    source = inspect.getsource(inspect.getattr_static(getattr(importlib.import_module(module), owner), method))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def test_flares_methods_have_the_source_that_was_read():
    call = "from tests.invariants.test_replaced_methods import *; print(*map(source_digest, REPLACED))"
    found = subprocess.run([sys.executable, "-c", call], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    digests = dict(zip(REPLACED, found.stdout.split(), strict=True))
    assert digests == REPLACED


def test_the_page_says_of_each_why_it_is_replaced():
    page = (REPOSITORY / "docs" / "security" / "flare.md").read_text()
    rows = {row.split("|")[1].strip(" `") for row in page.splitlines() if row.startswith("| `")}
    assert {name.rpartition(":")[2] for name in REPLACED} == rows


def test_no_other_method_of_flare_is_replaced():
    assigned = re.compile(r"^ +(?:setattr\((\w+), name|([A-Z]\w+)\.(\w+) = )", re.MULTILINE)
    found = set()
    for path in (PACKAGE / "federation").rglob("*.py"):
        for match in assigned.finditer(path.read_text()):
            owner = match[1] or match[2]
            found.add(owner if match[1] else f"{owner}.{match[3]}")
    known = {name.rpartition(":")[2] for name in REPLACED}
    assert found - {"Auditor"} == {name for name in known if not name.startswith(("Auditor.", "WFCommServer."))}
