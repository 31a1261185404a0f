"""The four pictures of docs/index.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from site_drawing import arrow, box, picture, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def hit() -> str:
    """What happens when a program calls a jitted function for the first time."""
    return picture(
        760,
        330,
        "A call is traced and lowered, and a key is made. If this host or the bucket has an entry under the key, it is "
        "loaded. Otherwise XLA compiles, and the result is stored on the host and in the bucket.",
        [
            box(10, 20, 130, 50, "first call"),
            arrow((140, 45), (180, 45)),
            box(180, 20, 150, 50, "trace and lower"),
            arrow((330, 45), (370, 45)),
            box(370, 20, 120, 50, "key"),
            arrow((430, 70), (430, 120)),
            box(350, 120, 160, 50, "copies on this host", kind="store"),
            arrow((430, 170), (430, 220), words="not there", at=(475, 195)),
            box(350, 220, 160, 50, "bucket", kind="store"),
            arrow((510, 145), (600, 145), words="hit", at=(555, 132)),
            arrow((510, 245), (560, 245), (560, 160), (600, 160), words="hit", at=(580, 235)),
            box(600, 120, 150, 60, "load\n(milliseconds)", kind="good"),
            arrow((350, 245), (250, 245), words="miss", at=(300, 232)),
            box(90, 215, 160, 60, "XLA compiles\n(seconds, minutes)", kind="bad"),
            arrow((170, 215), (170, 145), (350, 145), words="store", at=(260, 132)),
            arrow((170, 275), (170, 310), (430, 310), (430, 270), words="publish, in the background", at=(300, 297)),
        ],
    )


def key() -> str:
    """What is in a key and what is not."""
    parts = [
        box(10, 20, 230, 60, "the program\nshapes, operations, constants"),
        box(10, 95, 230, 60, "how it is compiled\noptions, flags that change code"),
        box(10, 170, 230, 60, "for what\ndevices, their layout, the CPU"),
        box(10, 245, 230, 60, "by what\njaxlib, plug-in, drivers by content"),
        box(330, 55, 150, 65, "logical digest"),
        box(330, 205, 150, 65, "environment\ndigest"),
        arrow((240, 50), (285, 50), (285, 78), (330, 78)),
        arrow((240, 125), (285, 125), (285, 97), (330, 97)),
        arrow((240, 200), (285, 200), (285, 228), (330, 228)),
        arrow((240, 275), (285, 275), (285, 247), (330, 247)),
        box(550, 130, 200, 65, "key\nstep-cuda-plain-1f…-9c…", kind="good"),
        arrow((480, 87), (650, 87), (650, 130)),
        arrow((480, 237), (650, 237), (650, 195)),
        text(640, 285, "not in it: paths, users,\nlines, order of flags, hosts", kind="label"),
    ]
    return picture(
        760, 325, "A key has two digests: of the program with its options, and of the devices and compilers.", parts
    )


def pod() -> str:
    """Four hosts that start together with one bucket."""
    parts = [box(300, 20, 160, 55, "bucket", kind="store")]
    for number, words in enumerate(
        ("host 0\nhas the lease, compiles", *(f"host {n}\nwaits, loads" for n in (1, 2, 3)))
    ):
        x = 10 + number * 190
        parts.append(box(x, 190, 170, 60, words, kind="good" if number else "bad"))
        parts.append(box(x + 15, 270, 140, 40, "local copies", kind="store"))
        parts.append(arrow((x + 85, 250), (x + 85, 270)))
    parts += [
        arrow((95, 190), (95, 47), (300, 47), words="publishes once", at=(195, 34)),
        *(
            arrow((x, 75), (x, turn), (95 + 190 * n, turn), (95 + 190 * n, 190))
            for n, x, turn in ((1, 340, 150), (2, 380, 130), (3, 420, 110))
        ),
        text(560, 45, "one request for each host", kind="label"),
    ]
    return picture(
        760,
        325,
        "Of four hosts that start together, one compiles and publishes to the bucket; the others wait and load it.",
        parts,
    )


def start() -> str:
    """Where the time of a start goes: cold, warm, and warm with preload."""
    rows: Mapping[str, tuple[tuple[float, str, str], ...]] = {
        "no cache": ((130, "import", ""), (150, "trace, lower", ""), (340, "compile", "bad"), (60, "run", "")),
        "warm": ((130, "import", ""), (150, "trace, lower", ""), (70, "load", "good"), (60, "run", "")),
        "warm, preload": ((130, "import", ""), (150, "trace, lower", ""), (60, "run", "")),
    }
    parts = []
    for number, (name, spans) in enumerate(rows.items()):
        y, x = 20 + number * 70, 120.0
        parts.append(text(105, y + 20, name, anchor="end"))
        for width, words, kind in spans:
            parts.append(box(x, y, width - 4, 40, words, kind=kind or "plain"))
            x += width
    parts += [
        box(170, 208, 70, 30, "load", kind="good"),
        text(250, 223, "in the background", kind="label", anchor="start"),
    ]
    return picture(
        810,
        250,
        "A start imports, traces and lowers, compiles, and runs; a warm one loads in place of compiling.",
        parts,
    )


PICTURES: Final[Mapping[str, Callable[[], str]]] = {"hit": hit, "key": key, "pod": pod, "start": start}
