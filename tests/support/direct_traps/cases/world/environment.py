"""Environment variables and files."""

from __future__ import annotations

from direct_traps.trap import trap

_ENV = {"TRAP_K": "«2|3»"}
_CLOCK = "it reads the clock"
_RANDOM = "it draws random numbers"
_FILE = "it reads a file"
_SEED = "its order depends on the hash seed, and each start has another one"

TRAPS = [
    trap(
        "os.environ in the trace",
        """
        import os
        @ejit
        def f(x):
            return x * int(os.environ["TRAP_K"])
        """,
        env=_ENV,
    ),
    trap(
        "os.getenv in the trace",
        """
        import os
        @ejit
        def f(x):
            return x * int(os.getenv("TRAP_K", "1"))
        """,
        env=_ENV,
    ),
    trap(
        "variable that was unset",
        """
        import os
        @ejit
        def f(x):
            return x * int(os.environ.get("TRAP_K", "1"))
        """,
        env={"TRAP_K": "«|3»"},
    ),
    trap(
        "environment in a helper of a helper",
        """
        import os
        def read(name, default):
            return os.environ.get("TRAP_" + name, default)
        def flag():
            return int(read("K", "1"))
        @ejit
        def f(x):
            return x * flag()
        """,
        env=_ENV,
    ),
    trap(
        "environment at import",
        """
        import os
        K = int(os.environ["TRAP_K"])
        @ejit
        def f(x):
            return x * K
        """,
        env=_ENV,
    ),
    trap(
        "'X' in os.environ",
        """
        import os
        @ejit
        def f(x):
            return x * (3 if "TRAP_K" in os.environ else 2)
        """,
        env={"TRAP_K": "«|1»"},
    ),
    trap(
        "iterating over os.environ",
        """
        import os
        @ejit
        def f(x):
            return x * len([name for name in os.environ if name.startswith("TRAP_")])
        """,
        env={"TRAP_K": "«|1»"},
        changed="either",
        unchanged="refused",
        why="it reads all variables",
    ),
    trap(
        "copy of os.environ",
        """
        import os
        env = dict(os.environ)
        @ejit
        def f(x):
            return x * int(env["TRAP_K"])
        """,
        env=_ENV,
    ),
    trap(
        "os.environb",
        """
        import os
        @ejit
        def f(x):
            return x * int(os.environb[b"TRAP_K"])
        """,
        env=_ENV,
    ),
    trap(
        "environment set in the program",
        """
        import os
        os.environ["TRAP_K"] = "«2|3»"
        @ejit
        def f(x):
            return x * int(os.environ["TRAP_K"])
        """,
    ),
    trap(
        "os.path.expanduser",
        """
        import os
        @ejit
        def f(x):
            return x * len(os.path.expanduser("~"))
        """,
        env={"HOME": "/«a|ab»"},
        changed="either",
        unchanged="refused",
        why="a path of this host is part of it",
    ),
    trap(
        "os.getcwd",
        """
        import os, pathlib
        pathlib.Path("«a|ab»").mkdir()
        os.chdir("«a|ab»")
        @ejit
        def f(x):
            return x * len(os.path.basename(os.getcwd()))
        """,
        changed="refused",
        unchanged="refused",
        why="it asks for the working directory",
    ),
    trap(
        "os.cpu_count",
        """
        import os
        os.cpu_count = lambda: «2|3»
        @ejit
        def f(x):
            return x * os.cpu_count()
        """,
        changed="either",
    ),
    trap(
        "open in the trace",
        """
        @ejit
        def f(x):
            with open("k.txt") as file:
                return x * int(file.read())
        """,
        files={"k.txt": "«2|3»"},
        changed="refused",
        unchanged="refused",
        why=_FILE,
    ),
    trap(
        "pathlib in the trace",
        """
        import pathlib
        @ejit
        def f(x):
            return x * int(pathlib.Path("k.txt").read_text())
        """,
        files={"k.txt": "«2|3»"},
        changed="refused",
        unchanged="refused",
        why=_FILE,
    ),
    trap(
        "np.load in the trace",
        """
        np.save("k.npy", np.float32(«2|3»))
        @ejit
        def f(x):
            return x * np.load("k.npy")
        """,
        changed="refused",
        unchanged="refused",
        why=_FILE,
    ),
    trap(
        "os.open in the trace",
        """
        import os
        @ejit
        def f(x):
            file = os.open("k.txt", os.O_RDONLY)
            k = int(os.read(file, 9))
            os.close(file)
            return x * k
        """,
        files={"k.txt": "«2|3»"},
        changed="refused",
        unchanged="refused",
        why=_FILE,
    ),
    trap(
        "json of a file, through a helper",
        """
        import json
        def load():
            with open("k.json") as file:
                return json.load(file)
        @ejit
        def f(x):
            return x * load()["k"]
        """,
        files={"k.json": '{"k": «2|3»}'},
        changed="refused",
        unchanged="refused",
        why=_FILE,
    ),
    trap(
        "open file in a global",
        """
        file = open("k.txt")
        @ejit
        def f(x):
            file.seek(0)
            return x * int(file.read())
        """,
        files={"k.txt": "«2|3»"},
        changed="refused",
        unchanged="refused",
        why=_FILE,
    ),
    trap(
        "file at import",
        """
        K = int(open("k.txt").read())
        @ejit
        def f(x):
            return x * K
        """,
        files={"k.txt": "«2|3»"},
    ),
    trap(
        "os.path.exists",
        """
        import os
        @ejit
        def f(x):
            return x * (2 if os.path.exists("«k|j».txt") else 3)
        """,
        files={"k.txt": "2"},
        changed="either",
        unchanged="refused",
        why="it asks the file system",
    ),
    trap(
        "os.path.exists, other disk",
        """
        import os
        @ejit
        def f(x):
            return x * (2 if os.path.exists("k.txt") else 3)
        """,
        files={"«k|j».txt": "2"},
        changed="refused",
        unchanged="refused",
        why=_FILE,
    ),
    trap(
        "os.stat and os.listdir",
        """
        import os
        @ejit
        def f(x):
            return x * len(os.listdir("d")) * os.stat("d/k.txt").st_size
        """,
        files={"d/k.txt": "2", "«d/k.txt|d/j.txt»": "2"},
        changed="refused",
        unchanged="refused",
        why=_FILE,
    ),
]
