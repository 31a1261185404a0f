"""The first token is asked for while the client is made, not in the time of the first answer: of each storage."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from answering import answer, serving
from capabilities import require

from ejcache.bucket.azure import AzureBucket
from ejcache.bucket.breaker import CircuitBreaker
from ejcache.bucket.gcs import GcsBucket
from ejcache.bucket.s3 import S3Bucket
from ejcache.errors import StoreError

STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>a</AccessKeyId><SecretAccessKey>s</SecretAccessKey>
<SessionToken>t</SessionToken><Expiration>{until}</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>r:s</AssumedRoleId></AssumedRoleUser>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


class Tokens:
    """A server of tokens that waits until a test lets it answer."""

    def __init__(self):
        self.asked, self.gate, self.times = threading.Event(), threading.Event(), 0

    def give(self):
        self.times += 1
        self.asked.set()
        assert self.gate.wait(60)


def nothing_is_spent_meanwhile(bucket, tokens):
    """Read what is not there, with a token that takes its time."""
    bucket.make_seconds, bucket.breaker = 60.0, CircuitBreaker()
    before, read = bucket.breaker.patience, []
    reader = threading.Thread(target=lambda: read.append(bucket.read("k")))
    reader.start()
    assert tokens.asked.wait(60)
    assert bucket.breaker.patience == before
    tokens.gate.set()
    reader.join()
    assert (read, tokens.times) == ([None], 1)
    bucket.close()


def test_of_google(monkeypatch):
    """Credentials that Google's libraries have found."""
    tokens = Tokens()

    class Credentials:
        valid, expiry = False, None

        def refresh(self, request):
            tokens.give()
            self.valid = True

        def apply(self, headers):
            headers["authorization"] = "Bearer t"

    with serving(lambda request: answer(request, b"", status=404)) as server:
        monkeypatch.setattr("ejcache.bucket.gcs.default_credentials", Credentials)
        monkeypatch.setattr("ejcache.bucket.gcs._GOOGLE", f"http://127.0.0.1:{server.server_port}")
        nothing_is_spent_meanwhile(GcsBucket("b"), tokens)


def test_of_a_role_of_aws(monkeypatch, tmp_path):
    """A role that is assumed by web identity."""
    require("s3")
    tokens, requests = Tokens(), []

    def token(handler):
        tokens.give()
        until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        answer(handler, STS.format(until=until).encode(), {"Content-Type": "text/xml"})

    def s3(handler):
        requests.append(handler.headers["Authorization"])
        answer(handler, b"<Error><Code>NoSuchKey</Code></Error>", {"Content-Type": "application/xml"}, status=404)

    (tmp_path / "identity").write_text("who I am")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with serving(token) as sts, serving(s3) as storage:
        for name, value in {
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "identity"),
            "AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{sts.server_port}",
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{storage.server_port}",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        nothing_is_spent_meanwhile(S3Bucket("bucket"), tokens)
    assert len(requests) == 1
    assert "Credential=a/" in requests[0]


def test_of_azure():
    """A credential that gets tokens."""
    require("adlfs")
    from azure.core.credentials import AccessToken

    class Credential:
        def __init__(self):
            self.tokens, self.fails = 0, True

        async def get_token(self, *scopes, **_):
            assert scopes == ("https://storage.azure.com/.default",)
            self.tokens += 1
            if self.fails:
                raise RuntimeError("no token today")
            return AccessToken("t", int(time.time()) + 3600)

        async def close(self):
            pass

    credential = Credential()
    bucket = AzureBucket("az://container/x", options={"account_name": "none", "credential": credential})
    bucket.prepare(wait=60)
    assert credential.tokens == 1
    with pytest.raises(StoreError, match="no token today"):
        bucket.read("k")
    assert credential.tokens > 1
    bucket.close()
