"""The program of a site's training child: raise the walls, then import what the job needs, and do its tasks.

It is started as a module by :class:`~grandrounds.federation.site.worker.TrainingChild`. Until the walls stand it imports
the standard library only.
"""

from __future__ import annotations

import socket
import sys
from importlib import import_module

from grandrounds.federation.site.frames import Frames
from grandrounds.federation.site.isolation import become_kept_child
from grandrounds.walls import Openings, raise_walls


def main() -> None:
    """Serve the parent on the socket that it has given, until it closes it."""
    guarded = become_kept_child(int(sys.argv[2]))
    frames = Frames(socket.socket(fileno=int(sys.argv[1])))
    start, _ = frames.receive()
    # Landlock is of the thread that asks for it and of those that it starts: so far there is one.
    missing = raise_walls(Openings(tuple(start["read"]), tuple(start["write"]), guarded))
    frames.send({"kind": "ready", "missing": missing})
    import_module("grandrounds.federation.site.serving").serve_tasks(frames, start)


if __name__ == "__main__":
    main()
