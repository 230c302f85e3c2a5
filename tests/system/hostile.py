"""A hostile hospital and a hostile server, inside their own FLARE processes: components of their own kits.

The hospital changes its answers behind its own gate; the server changes the tasks of one hospital, and asks it by FLARE's
admin channel. What they change is chosen by the round; what happens is noted in a file of their kit.
"""

import json
import sys
import threading
import time
from pathlib import Path

import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.admin_defs import Message
from nvflare.private.defs import CellChannel, RequestHeader, TrainingTopic, new_cell_message
from nvflare.private.scheduler_constants import ShareableHeader

# Who is hostile has no seal: its kit's list would not let it load what it attacks with.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "Seal"]

from grandrounds.federation.server import exchange  # noqa: E402
from grandrounds.federation.server.exchange import Exchange  # noqa: E402
from grandrounds.federation.server.sites import SiteHealth  # noqa: E402
from grandrounds.privacy.gate.filters import SitePrivacyGate  # noqa: E402
from grandrounds.protocol.messages import REASON_HEADER, Payload  # noqa: E402
from grandrounds.protocol.wire import encode_payload  # noqa: E402

SEEN, PLAN, SAID = "seen.jsonl", "questions.json", "said.json"
MARKUP = "<script>alert(1)</script>"


def parts(reply):
    return reply["DXO"]["data"]


def update(reply):
    return parts(reply)["update"].data


def scaled(factor):
    def change(reply):
        update(reply).update({name: value * factor for name, value in update(reply).items()})

    return change


def filled(value):
    return lambda reply: next(iter(update(reply).values())).fill_(value)


def entry(name, value):
    return lambda reply: update(reply).__setitem__(name or next(iter(update(reply))), value)


def meta(name, value):
    return lambda reply: reply["DXO"]["meta"].__setitem__(name, value)


def metrics(**values):
    return lambda reply: parts(reply)["metrics"].data.update({key.replace("_of_", "."): v for key, v in values.items()})


def many_metrics(reply):
    parts(reply)["metrics"].data.update({f"m{number}": 0.0 for number in range(20_000)})


def part(name, kind, **tensors):
    def change(reply):
        parts(reply)[name] = DXO(DataKind.APP_DEFINED, data=tensors, meta={"release": kind})

    return change


def nested(reply):
    deep = {}
    for _ in range(50):
        deep = {"a": deep}
    reply["DXO"]["meta"]["deep"] = deep


def replaced(content):
    return lambda reply: reply.__setitem__("DXO", content)


def refused(reply):
    reply.clear()
    reply.update(make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: f"a\nb {MARKUP} " + "x" * 10_000}))


def false_gate(reply):
    parts(reply)["update"].set_meta_prop("treated", MARKUP)


def half(reply):
    update(reply).update({name: value.half() for name, value in update(reply).items()})


def counts(images, patients):
    def change(reply):
        shape = (4, 3)
        tensors = {"images": torch.full(shape, images), "patients": torch.full(shape, patients)}
        part("counts_validation", "counts", **tensors)(reply)

    return change


FIRST = {}


def kept_answer(reply):
    FIRST.update(reply)


def replayed(reply):
    reply.update(FIRST)


ANSWERS = {
    "honest": kept_answer,
    "an answer of the round before": replayed,
    "another run's identity": meta("run_id", "other"),
    "a round number that is a text": meta("round", "3"),
    "a protocol of its own": meta("protocol", 7),
    "a value that is not a number": filled(float("nan")),
    "an infinite value": filled(float("inf")),
    "an update a hundred times as long": scaled(100.0),
    "an update of 1e37": scaled(1e37),
    "an entry of another shape": entry("", torch.zeros(7)),
    "an unknown entry": entry("backdoor", torch.ones(3)),
    "an entry with a path as its name": entry("../../startup/server.key", torch.ones(3)),
    "half precision that was not asked for": half,
    "integers": entry("", torch.ones(3, dtype=torch.int64)),
    "a billion samples": meta("samples", 10**9),
    "more samples than there are people": meta("samples", 10**12),
    "negative samples": meta("samples", -5),
    "samples as a text": meta("samples", "many"),
    "a score above one": metrics(validation_of_auc_macro=50.0),
    "a positive log-likelihood": metrics(validation_of_log_likelihood=1e6),
    "a metric of 1e300": metrics(loss=1e300),
    "a metric that is a text": metrics(loss=MARKUP),
    "20,000 metrics": many_metrics,
    "a metric's name of 10,000 characters": metrics(**{"x" * 10_000: 1.0}),
    "a part that no method declares": part("images", "pictures", values=torch.ones(3)),
    "embeddings in federated averaging": part("patients", "embeddings", values=torch.ones(3, 3)),
    "negative counts": counts(-5, -5),
    "more patients than images": counts(3, 9),
    "counts of 1e15 images": counts(10**15, 10**15),
    "dictionaries in dictionaries": nested,
    "a text in place of the content": replaced("nothing"),
    "64 MiB beside the update": lambda reply: part("curves_common", "curves", counts=torch.zeros(2**24))(reply),
    "a reason with markup and new lines": refused,
    "a false name of a treatment": false_gate,
}
"""What the hospital makes of its answer, by name; one a round, in this order."""


def values(**changed):
    return lambda payload: Payload(payload.round_number, {**payload.values, **changed}, payload.parts)


def problem(**changed):
    return lambda payload: values(problem={**payload.values["problem"], **changed})(payload)


def weights(value):
    def change(payload):
        model = {name: torch.full_like(one, value) for name, one in payload.parts["global"].items()}
        return Payload(payload.round_number, payload.values, {**payload.parts, "global": model})

    return change


def numbered(number):
    return lambda payload: Payload(number, payload.values, payload.parts)


def extra_part(payload):
    return Payload(payload.round_number, payload.values, {**payload.parts, "../../x": {"w": torch.ones(2)}})


TASKS = {
    "honest": lambda payload: payload,
    "weights of 3e38": weights(3e38),
    "weights that are no numbers": weights(float("nan")),
    "no model": lambda payload: Payload(payload.round_number, payload.values, {}),
    "a part with a path as its name": extra_part,
    "a run's name that is a path": values(run_name="../../startup"),
    "a run's identity that is a path": values(run_id="a/b"),
    "the name of another user's run": values(run_name="somebody-elses"),
    "a negative round": numbered(-1),
    "a data set that is a path": problem(dataset="/etc"),
    "a data set that the hospital has not": problem(dataset="others"),
    "the private set called public": values(public="phantom"),
    "classes without one that the hospital has": problem(classes=["round", "ring", "clustered"]),
    "a million classes": lambda payload: problem(classes=[*map(str, range(1_000_000))])(payload),
    "a network that is a path": problem(backbone="os.system"),
    "frozen weights of a file of the hospital": problem(trainable="head", weights="startup/client.key"),
    "a file of the hospital as weights": problem(weights="/etc/passwd"),
    "checkpoints that are no numbers": values(checkpoints=["../../local"]),
    "a seed that is a list": values(seed=[1, 2]),
    "a precision that does not exist": values(update_precision="float1"),
    "options that are no options": problem(gate="off"),
}
"""What the server makes of the task of one hospital, by name; one a round, in this order."""


def noted(folder, **entry_of):
    with (folder / SEEN).open("a") as stream:
        stream.write(json.dumps(entry_of) + "\n")


class HostileHospital(FLComponent):
    """Changes what the gate of its own site lets out."""

    def __init__(self):
        super().__init__()
        filter_answer, done = SitePrivacyGate._filter_answer, iter(ANSWERS.items())

        def changed(gate, reply, fl_ctx):
            left = filter_answer(gate, reply, fl_ctx)
            if fl_ctx.get_prop("__task_name__") != "train" or left.get_return_code() != ReturnCode.OK:
                return left
            name, change = next(done, ("honest", lambda reply: None))
            number = left["DXO"]["meta"]["round"]
            change(left)
            noted(Path(fl_ctx.get_engine().get_workspace().get_root_dir()), round=number, change=name)
            return left

        SitePrivacyGate._filter_answer = changed


class HostileServer(FLComponent):
    """Changes the tasks of ``victim``, notes its answers, and asks it what a test writes into the kit."""

    def __init__(self, victim):
        super().__init__()
        self.victim = victim
        self._folder = None
        SiteHealth.paused = lambda *arguments: False
        received, done, server = Exchange._received, iter(TASKS.items()), self
        run = Exchange.run

        def asked(self, assignments, *arguments, **named):
            tasks = dict(assignments)
            if victim in tasks and tasks[victim].task == "train":
                name, change = next(done, ("honest", lambda payload: payload))
                self.change = name
                tasks[victim] = tasks[victim]._replace(payload=change(tasks[victim].payload))
            return run(self, tasks, *arguments, **named)

        def answered(self, client_task, fl_ctx):
            reply = client_task.result
            if client_task.client.name == victim and getattr(self, "change", ""):
                content = reply.get("DXO", {})
                headers = {key: str(value) for key, value in reply[ReservedHeaderKey.HEADERS].items() if key != "__t__"}
                told = {"code": reply.get_return_code(), "reason": headers.get(REASON_HEADER, "")}
                folder = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
                noted(folder, change=self.change, parts=sorted(content.get("data", {})), **told)
            received(self, client_task, fl_ctx)

        exchange.encode_payload = unchecked
        Exchange.run, Exchange._received = asked, answered
        self.register_event_handler(EventType.SYSTEM_START, server._start)

    def _start(self, event_type, fl_ctx):
        engine = fl_ctx.get_engine()
        folder = Path(engine.get_workspace().get_root_dir())
        threading.Thread(target=ask, args=(engine.server.cell, folder, self.victim), daemon=True).start()


def unchecked(payload):
    return encode_payload(payload)


def ask(cell, folder, victim):
    """Wait for questions, and write what the victim answers."""
    while True:
        if (folder / PLAN).is_file():
            questions = json.loads((folder / PLAN).read_text())
            (folder / PLAN).unlink()
            said = [question(cell, victim, **one) for one in questions]
            (folder / "said.tmp").write_text(json.dumps(said))
            (folder / "said.tmp").rename(folder / SAID)
        time.sleep(0.2)


def reserved(cell, victim, job):
    """What a hospital gives for a start: the right to its resources."""
    message = Message(topic=TrainingTopic.CHECK_RESOURCE, body={})
    message.set_header(RequestHeader.JOB_ID, job)
    reply = cell.send_request(
        CellChannel.CLIENT_MAIN, message.topic, victim, new_cell_message({}, message), timeout=5.0
    )
    return reply.payload.body.get_header(ShareableHeader.RESOURCE_RESERVE_TOKEN)


def question(cell, victim, topic, body="", job="", channel=CellChannel.CLIENT_MAIN, raw=False, meta=None):
    """What a hospital answers the server's own process."""
    message = Message(topic=topic, body=body)
    if topic == TrainingTopic.START_JOB and meta:
        message.set_header(ShareableHeader.RESOURCE_RESERVE_TOKEN, reserved(cell, victim, job))
        message.set_header(RequestHeader.JOB_META, meta)
    for header, value in ((RequestHeader.USER_ROLE, "super"), (RequestHeader.JOB_ID, job)):
        message.set_header(header, value)
    reply = cell.send_request(channel, topic, victim, new_cell_message({}, message if not raw else body), timeout=5.0)
    said = reply.payload.body if isinstance(reply.payload, Message) else repr(reply.payload)
    return {
        "topic": topic,
        "job": job,
        "code": reply.get_header(MessageHeaderKey.RETURN_CODE),
        "said": str(said)[:2000],
    }
