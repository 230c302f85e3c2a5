"""A headless Chromium that a test clicks in, without network; the protocol is that of DevTools, by pipes."""

import json
import os
import shutil
import subprocess

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--no-first-run", "--enable-logging=stderr",
)  # fmt: skip
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost"
KEYS = {"Enter": {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}, "Tab": {"windowsVirtualKeyCode": 9}}


def installed_browser():
    """The browser of this machine; without one the test is skipped."""
    path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    return path


class Window:
    """A page in a browser; ``complaints`` are what its console was told."""

    def __init__(self, browser, profile):
        ours, theirs = os.pipe(), os.pipe()

        def wire():
            os.dup2(os.dup(ours[0]), 3)
            os.dup2(os.dup(theirs[1]), 4)

        command = [browser, *QUIET, OFFLINE, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(
            command, preexec_fn=wire, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._to, self._from = os.fdopen(ours[1], "wb", 0), os.fdopen(theirs[0], "rb")
        self._rest, self._number, self._session, self._seen = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log"):
            self.ask(f"{part}.enable")

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        self._to.close()
        self._from.close()

    def ask(self, method, **parameters):
        """The answer to a question of the protocol."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        question = {"id": self._number, "method": method, "params": parameters, **session}
        self._to.write(json.dumps(question).encode() + b"\0")
        while (message := self._message()).get("id") != self._number:
            self._seen.append(message)
        assert "error" not in message, (method, message)
        return message["result"]

    def _message(self):
        while b"\0" not in self._rest:
            part = os.read(self._from.fileno(), 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, address, width=1280, height=800):
        """Show an address, and wait until all of it is there."""
        mobile = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self._seen.clear()
        self.ask("Page.navigate", url=address)
        while not any(message.get("method") == "Page.loadEventFired" for message in self._seen):
            self._seen.append(self._message())

    @property
    def complaints(self):
        names = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [message for message in self._seen if message.get("method") in names]

    def value(self, expression):
        """What an expression of JavaScript gives."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector):
        """Click in the middle of the first element that a selector names."""
        x, y = self.value(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)}); "
            "element.scrollIntoView({block: 'center'}); const box = element.getBoundingClientRect(); "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def save_into(self, folder):
        """Save what a page offers for download in a folder; whole files alone have their names."""
        self.ask("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def press(self, key):
        """Press a key where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, **KEYS[key])

    def picture(self):
        """The whole page as PNG, in base64."""
        return self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
