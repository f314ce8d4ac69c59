"""Which paths have credentials, and that none is shown."""

from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remote_udf.credentials import has_credentials, without_credentials
from remote_udf.errors import InvalidOption
from remote_udf.option_values import path

SCHEMES = st.sampled_from(["s3", "S3A", "gs", "abfss", "wasbs", "hdfs", "https", "ftp", "file", "redis+tls"])
SECRETS = st.text("abcXYZ0123456789/+=?#%&:;@ .-_~é", min_size=6, max_size=40)
"""What services give out: with characters that end parts of a URI."""
BUCKETS = st.sampled_from(["bucket", "account.example.com", "host:9000", "10.0.0.1"])
TAILS = st.sampled_from(["", "/", "/a/b.parquet", "/day=2024-01-01/*", "/x?region=eu"])
NAMES = st.sampled_from([
    "access_key", "secret_key", "password", "passwd", "pwd", "token", "session_token", "sas_token", "sig", "signature",
    "account_key", "AccountKey", "api-key", "client_secret", "X-Amz-Security-Token", "X-Amz-Signature", "sharedKey",
    "AWSAccessKeyId", "X-Goog-Credential", "key", "pass", "passphrase", "auth", "connection.string", "private_key",
])  # fmt: skip


def lengthened(secret):
    """A secret whose parts do not stand in the rest of the URI by chance."""
    return f"Qq{secret}Zz"


@st.composite
def with_password(draw):
    """A URI, and the secret in it."""
    secret = lengthened(draw(SECRETS))
    user, slashes = (
        draw(st.sampled_from(["", "AKIAEXAMPLE", "me%40here"])),
        draw(st.sampled_from(["", "/", "//", "///"])),
    )
    uri = f"{draw(SCHEMES)}:{slashes}{user}:{secret}@{draw(BUCKETS)}{draw(TAILS)}"
    return uri, secret


@st.composite
def with_parameter(draw):
    secret = "Qq" + draw(st.text("abcXYZ0123456789/+=%:@.-_~", min_size=6, max_size=40)) + "Zz"
    before = draw(st.sampled_from(["?", "?region=eu&", ";", "#", "?a;"]))
    after = draw(st.sampled_from(["", "&region=eu", "#part"]))
    start = draw(
        st.sampled_from(["s3://bucket/a", "https://account.blob.core.windows.net/c/a.parquet", "/local/a", "a"])
    )
    return f"{start}{before}{draw(NAMES)}={secret}{after}", secret


@given(with_password() | with_parameter())
@example(("s3://KEY:SE/CRET@bucket", "SE/CRET"))
@example(("s3:/KEY:SE/CRET@bucket/a", "SE/CRET"))
@example(("s3://KEY:12/34567@bucket", "12/34567"))
@example(("hdfs://me:1234@namenode:8020/a", "1234"))
@example(("/data/a,s3://KEY:SE/CRET@bucket", "SE/CRET"))
@example(("simplecache::s3://KEY:SE/CRET@bucket", "SE/CRET"))
@example(("https://TO-KEN@example.com/a", "TO-KEN"))
def test_a_credential_is_found_and_not_shown(given):
    uri, secret = given
    for text in (uri, quote(uri), quote(uri, safe=""), quote(quote(uri, safe=""), safe="")):
        assert has_credentials(text)
        with pytest.raises(InvalidOption) as refused:
            path(text)
        assert secret not in str(refused.value) and quote(secret) not in str(refused.value)
    assert secret not in without_credentials(uri)


@pytest.mark.parametrize(
    "plain",
    [
        "/data/in", "relative/a:b@c", "/data/user@host/a=b", "C:\\data\\a@b", "s3://bucket", "s3a://bucket/a:b@c/d",
        "s3://bucket/a/*.parquet?region=eu-west-1&endpoint_override=localhost", "gs://bucket/day=2024-01-01T10:00:00/",
        "abfss://container@account.dfs.core.windows.net/a/b", "hdfs://namenode:8020/user/alice@example.com/a",
        "hdfs://namenode/user/alice@example.com", "file:///tmp/a:b@c", "file:/tmp/x", "dbfs:/Users/a@b.c/d", "part-?/a",
        "https://host:8443/a?version=2&author=me", "/data/token=abc/part", "s3://bucket/monkey=1/keyword=2", "unix:/a",
    ],
)  # fmt: skip
def test_paths_without_credentials_are_taken_and_shown_as_they_are(plain):
    assert not has_credentials(plain)
    assert path(plain) == plain
    assert without_credentials(plain).replace("...@", "container@") == plain
