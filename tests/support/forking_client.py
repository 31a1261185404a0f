"""`python` for shells of tests: it has the process of `forking` run the program.

Its first arguments are the socket, and what is `sys.executable` there.
"""

import json
import os
import socket
import sys

requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
requests.connect(sys.argv[1])
answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
place = os.getcwd()  # noqa: PTH109  # without pathlib it starts in 20 ms
request = {"arguments": sys.argv[3:], "python": sys.argv[2], "environment": dict(os.environ), "cwd": place}
socket.send_fds(requests, [json.dumps(request).encode()], [0, 1, 2, theirs.fileno()])
theirs.close()
answers.recv(100)
status = os.waitstatus_to_exitcode(int(answers.recv(100)))
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status & 0xFF)
