"""The recipes of docs/trust.md: CI writes by an identity of its own, everybody else reads.

The emulators check identities as far as they can: moto signatures and policies of IAM, Azurite signatures of shared
access. Google's emulator checks nothing, so one that refuses all writes stands for what IAM would refuse.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pytest
from answering import answer, serving
from azurite import AzureServer
from buckets import GcsServerProcess, S3Server
from capabilities import require
from dead_ends import URLS, leads_to
from soak_turns import some

PROGRAM = """
import json, sys
from ejcache import entry
from ejcache.cache.opening import open_cache_store
from ejcache.settings.resolve import resolve

store = open_cache_store(sys.argv[1], resolve())
found = 0
for n in range(int(sys.argv[2])):
    key = f"jit_f{n}-cpu-plain-{n:064x}"
    if store.get(key) is None:
        store.put(key, entry.encode(entry.Header(key=key), b"x"))
    else:
        found += 1
assert store.flush(60)
uploads = store.counters().get("shared_uploads", 0)
print(json.dumps({"found": found, "read_only": store.shared.read_only, "uploads": uploads}))
"""

_READS = ("s3:GetObject", "s3:ListBucket")


@contextmanager
def google(directory):
    """GitHub's token is exchanged for one of Google's; everybody else has none that may write."""
    (directory / "token").write_text("signed by GitHub")
    with exchange() as tokens, GcsServerProcess() as server:
        config = directory / "ci.json"
        config.write_text(json.dumps({
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/ci/providers/github",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{tokens.url}/v1/token",
            "credential_source": {"file": str(directory / "token")},
        }))  # fmt: skip
        there = leads_to("gs", server.url)
        yield (
            {**there, "EASYDEL_GCS_CLIENT": str(config)},
            there,
            lambda: server.add_fault("status", method="POST", status=403),
        )
        assert tokens.asked


@contextmanager
def amazon(directory):
    """A role that GitHub's token may assume writes; the policy of the readers' user allows two actions."""
    import boto3

    (directory / "token").write_text("signed by GitHub")
    with S3Server() as server:
        own = {"endpoint_url": server.url, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
        iam = boto3.client("iam", region_name="us-east-1", **own)
        assume = {"Version": "2012-10-17", "Statement": []}
        role = iam.create_role(RoleName="ci", AssumeRolePolicyDocument=json.dumps(assume))["Role"]["Arn"]
        iam.put_role_policy(RoleName="ci", PolicyName="writes", PolicyDocument=policy("s3:*"))
        iam.create_user(UserName="reader")
        iam.put_user_policy(UserName="reader", PolicyName="reads", PolicyDocument=policy(*_READS))
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        there = {"AWS_ENDPOINT_URL": server.url, "AWS_DEFAULT_REGION": "us-east-1"}
        reader = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        ci = {"AWS_ROLE_ARN": role, "AWS_WEB_IDENTITY_TOKEN_FILE": str(directory / "token")}

        def decide_by_policies():
            # Not before CI has written: moto would ask the exchange of tokens, too, for a signature.
            reset = Request(f"{server.url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
            urlopen(reset, timeout=60).close()

        yield {**there, **ci}, {**there, **reader}, decide_by_policies


@contextmanager
def microsoft(directory):
    """The account's key writes; a shared access signature allows to read and list."""
    from datetime import UTC, datetime, timedelta

    from azure.storage.blob import generate_container_sas

    require("azure")
    with AzureServer() as server:
        ci = leads_to("az", server.url)
        parts = dict(part.split("=", 1) for part in ci["AZURE_STORAGE_CONNECTION_STRING"].split(";") if part)
        signature = generate_container_sas(
            parts["AccountName"],
            "bucket",
            account_key=parts["AccountKey"],
            permission="rl",
            expiry=datetime.now(UTC) + timedelta(hours=1),
        )
        reads = f"BlobEndpoint={parts['BlobEndpoint']};SharedAccessSignature={signature}"
        yield ci, {"AZURE_STORAGE_CONNECTION_STRING": reads}, lambda: None


def policy(*actions):
    return json.dumps({
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}],
    })  # fmt: skip


@contextmanager
def exchange():
    """A service that gives a token of Google's for one of another issuer's (RFC 8693)."""

    asked = []

    def give(handler):
        asked.append(handler.rfile.read(int(handler.headers["Content-Length"])))
        token = {
            "access_token": "may-write",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": 3600,
        }
        answer(handler, json.dumps(token).encode())

    with serving(give) as server:
        server.asked = asked
        server.url = f"http://127.0.0.1:{server.server_port}"
        yield server


@pytest.mark.parametrize(("kind", "identities"), some([("gs", google), ("s3", amazon), ("az", microsoft)], every=3))
def test_one_writes_and_the_others_read(kind, identities, run_client, answering_python, tmp_path):
    """A reader finds what CI stored, notices by itself that it may not write, and says so in one line."""
    with identities(tmp_path) as (ci, reader, close):

        def run(host, count, env):
            finished = run_client(
                PROGRAM,
                URLS[kind],
                str(count),
                env={"EJCACHE_LOCAL_DIR": str(tmp_path / host), **env},
                timeout=200,
            )
            return json.loads(finished.stdout), finished.stderr

        written, said = run("ci", 3, ci)
        assert (written["found"], written["read_only"], said) == (0, False, "")
        close()
        read, said = run("reader", 5, reader)
        assert (read["found"], read["read_only"], read["uploads"]) == (3, True, 0)
        assert len(said.splitlines()) == 1
        assert "is only read by this process" in said
        code = "import sys; sys.executable = sys.argv.pop(); from ejcache.cli.main import main; main(sys.argv[1:])"
        doctor = run_client(code, "doctor", URLS[kind], answering_python, env=reader, timeout=200, check=False).stdout
        assert "only reading works" in " ".join(doctor.split())
