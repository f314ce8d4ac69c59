"""What a header Retry-After means."""

import datetime

from udf_server.retry_after import retry_after_seconds


def test_retry_after_may_be_seconds_a_date_or_nonsense():
    now = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC).timestamp()
    assert retry_after_seconds("120", now) == 120
    assert retry_after_seconds("Mon, 01 Jan 2024 12:00:30 GMT", now) == 30
    assert retry_after_seconds("Mon, 01 Jan 2024 11:00:00 GMT", now) == 0
    assert [retry_after_seconds(text, now) for text in (None, "", "soon", "-1", "1.5", "٣")] == [None] * 6
