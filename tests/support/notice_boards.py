"""What the ranks of a job need of JAX's client of the coordination service, within one process."""

from __future__ import annotations

import threading


class NoticeBoard:
    """Notes that are written once, and waits that end.

    Attributes:
        asked: the milliseconds that each wait was allowed.
        hurries: a wait for what is not there ends at once, as if its time had passed.
    """

    def __init__(self):
        self._notes = {}
        self._there = threading.Condition()
        self.asked = []
        self.hurries = False

    def key_value_set_bytes(self, name, note):
        with self._there:
            if name in self._notes:
                raise RuntimeError("ALREADY_EXISTS")
            self._notes[name] = note
            self._there.notify_all()

    def blocking_key_value_get_bytes(self, name, milliseconds):
        with self._there:
            self.asked.append(milliseconds)
            seconds = 0 if self.hurries else milliseconds / 1000
            if not self._there.wait_for(lambda: name in self._notes, seconds):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self._notes[name]

    def key_value_try_get_bytes(self, name):
        with self._there:
            if name not in self._notes:
                raise RuntimeError("NOT_FOUND")
            return self._notes[name]

    def key_value_dir_get_bytes(self, directory):
        with self._there:
            return [(name, note) for name, note in self._notes.items() if name.startswith(f"{directory}/")]
