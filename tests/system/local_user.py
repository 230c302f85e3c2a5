"""A local user of a participant's machine, without rights: a TCP connection to an internal port, no file, no certificate.

``python local_user.py PORT PARTICIPANT JOB``: what each attempt gets, as JSON, one a line.
"""

import json
import logging
import os
import sys
import time

from nvflare.apis.fl_constant import ReservedKey, ReservedTopic
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.communicator import load_comm_drivers
from nvflare.private.admin_defs import Message
from nvflare.private.defs import CellChannel, SysCommandTopic, TrainingTopic
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

TOPICS = (
    TrainingTopic.CHECK_STATUS,
    SysCommandTopic.SYS_INFO,
    SysCommandTopic.REPORT_ENV,
    SysCommandTopic.REPORT_RESOURCES,
    TrainingTopic.GET_SCOPES,
    SysCommandTopic.SHELL,
    TrainingTopic.ABORT,
    TrainingTopic.DELETE_RUN,
    TrainingTopic.SHUTDOWN,
    TrainingTopic.RESTART,
)
TASKS = ("join", "train", "validate", "test")


def task(name, job):
    asked = Shareable()
    asked.set_header(ReservedHeaderKey.TASK_NAME, name)
    asked.set_header(ReservedHeaderKey.TASK_ID, "t-1")
    asked.set_header(ReservedHeaderKey.TOPIC, ReservedTopic.DO_TASK)
    asked.set_peer_props({ReservedKey.RUN_NUM: job, ReservedKey.IDENTITY_NAME: "server"})
    return asked


def main(port, participant, job):
    logging.disable(logging.CRITICAL)
    nvflare_fobs_initialize()
    me = f"{participant}.5f0c0000-0000-4000-8000-00000000beef"
    url = {"root_url": "tcp://localhost:1", "parent_url": f"tcp://localhost:{port}"}
    cell = Cell(fqcn=me, secure=False, credentials={}, create_internal_listener=False, **url)
    load_comm_drivers()  # nobody else may read the environment
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    cell.start()
    time.sleep(2)

    def ask(channel, topic, target, content):
        reply = cell.send_request(channel, topic, target, new_cell_message({}, content), timeout=3.0)
        said = {"code": str(reply.get_header(MessageHeaderKey.RETURN_CODE)), "said": str(reply.payload)[:200]}
        print(json.dumps({"topic": topic, "target": target, **said}), flush=True)

    for topic in TOPICS:
        ask(CellChannel.CLIENT_MAIN, topic, participant, Message(topic=topic, body=""))
    for name in TASKS:
        ask(CellChannel.AUX_COMMUNICATION, ReservedTopic.DO_TASK, f"{participant}.{job}", task(name, job))
    ask("_net_manager", "process_info", participant, {})
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
