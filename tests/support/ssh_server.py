"""An SSH server on loopback, with files of its own, in a process of its own; and what is mounted of it with sshfs.

python ssh_server.py ROOT KEYS      serves ROOT by SFTP until stdin ends; prints its port
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from ejcache.bucket.sftp import SftpBucket

__all__ = ["MountedServer", "SshServer", "sftp_bucket", "ssh_home", "why_no_mount", "why_no_ssh"]

FULL = ".full"
"""A file of this name in the root makes the disk full."""


def why_no_ssh() -> str:
    """Why no SSH server can be started here, or nothing."""
    try:
        import asyncssh  # noqa: F401
    except ImportError:
        return "asyncssh is not installed"
    return ""


@cache
def why_no_mount() -> str:
    """Why nothing can be mounted here with sshfs, or nothing."""
    for command in ("sshfs", "fusermount3"):
        if shutil.which(command) is None:
            return f"{command} is not installed"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    if why_no_ssh():
        return why_no_ssh()
    try:
        with MountedServer():
            return ""
    except (OSError, subprocess.SubprocessError) as exc:
        return f"sshfs cannot mount: {exc}"


class SshServer:
    """The server, which accepts one key.

    Attributes:
        url: for `ssh_home`: it has the port.
        root: what it serves as `/`.
    """

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="ejcache-ssh-"))
        self.root = self._directory / "root"
        (self.root / "cache").mkdir(parents=True)
        self._process = subprocess.Popen(
            [sys.executable, __file__, self.root, self._directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        ssh_home(self.url, keys=self._directory)
        return self

    def fill(self) -> None:
        """Leave no room on the disk."""
        (self.root / FULL).touch()

    def free(self) -> None:
        """Leave room again."""
        (self.root / FULL).unlink()

    def stop(self) -> None:
        """Answer nothing any more, with all connections open."""
        self._process.send_signal(signal.SIGSTOP)

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._directory)


class MountedServer(SshServer):
    """The server, and a directory where it is mounted.

    Attributes:
        path: the directory.
    """

    def __enter__(self) -> Self:
        super().__enter__()
        self.path = self._directory / "mounted"
        self.path.mkdir()
        config = ssh_home(self.url) / ".ssh" / "config"
        try:
            # Without them, Linux waits for a silent server for ever when a program that was writing ends.
            # sshfs may connect once more, to a server that accepts and says nothing.
            alive = "ServerAliveInterval=1,ServerAliveCountMax=2,ConnectTimeout=3"
            command = ["sshfs", "-F", config, "-o", alive, "bucket:/", self.path]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        except BaseException:
            super().__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        # The server first: what waits for it goes on.
        self._process.kill()
        subprocess.run(["fusermount3", "-uz", self.path], check=False, capture_output=True, timeout=60)
        super().__exit__(*exc)


def ssh_home(url: str, *, keys: Path | None = None) -> Path:
    """A home directory whose SSH configuration leads to the server at `url` by the name `bucket`.

    Args:
        url: of the server.
        keys: the directory with its key and the user's; by default what an earlier call has named.
    """
    port = url.rpartition(":")[2]
    home = Path(tempfile.gettempdir()) / f"ejcache-test-ssh-{os.getuid()}-{port}"
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
    if keys is not None:
        shutil.copy(keys / "user", ssh / "id_ed25519")
        (ssh / "id_ed25519").chmod(0o600)
        (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {(keys / 'host.pub').read_text()}")
    (ssh / "known_hosts").touch()
    if keys is not None or not (ssh / "config").exists():
        lines = ["Host bucket", "HostName 127.0.0.1", f"Port {port}", f"UserKnownHostsFile {ssh}/known_hosts"]
        if keys is not None:
            lines.append(f"IdentityFile {ssh}/id_ed25519")
        (ssh / "config").write_text("\n".join([*lines, ""]))
    return home


def sftp_bucket(url: str, prefix: str = "prefix", *, deadline: float = 60.0, **options) -> SftpBucket:
    """A directory of the server at `url`; `options` are asyncssh's."""
    from ejcache.bucket.retry import RetryPolicy
    from ejcache.bucket.sftp import SftpBucket

    options = {"config": str(ssh_home(url) / ".ssh" / "config"), **options}
    return SftpBucket(f"sftp://bucket/{prefix}", options=options, policy=RetryPolicy(deadline))


async def _serve(root: Path, directory: Path) -> None:
    import asyncssh

    class Files(asyncssh.SFTPServer):
        def __init__(self, channel) -> None:
            super().__init__(channel, chroot=bytes(root))

        def write(self, file, offset, data):
            if (root / FULL).exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(file, offset, data)

    for name in ("host", "user"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(directory / name)
        key.write_public_key(directory / f"{name}.pub")
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[directory / "host"],
        authorized_client_keys=str(directory / "user.pub"),
        sftp_factory=Files,
    )
    print(server.get_port(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), Path(sys.argv[2])))
