"""What a header Retry-After means."""

import datetime
import time
from collections.abc import Callable, Iterator

import pytest

from udf_server.retry_after import retry_after_seconds

FORMS = (
    "%a, %d %b %Y %H:%M:%S GMT",
    "%A, %d-%b-%y %H:%M:%S GMT",
    "%a %b %e %H:%M:%S %Y",
    "%a, %d %b %Y %H:%M:%S -0000",
)
"""The three of RFC 9110 section 5.6.7, and the zone for UTC of RFC 5322."""


@pytest.fixture
def local_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the machine's zone until the test ends."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata", "Pacific/Kiritimati"])
def test_a_date_is_in_utc_wherever_the_server_runs(local_zone, zone):
    local_zone(zone)
    for month in (1, 7):
        at = datetime.datetime(2024, month, 6, 8, 49, 37, tzinfo=datetime.UTC)
        assert [retry_after_seconds(at.strftime(form), at.timestamp() - 30) for form in FORMS] == [30] * len(FORMS)


def test_retry_after_may_be_seconds_a_date_or_nonsense():
    now = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC).timestamp()
    assert retry_after_seconds("120", now) == 120
    assert retry_after_seconds("Mon, 01 Jan 2024 12:00:30 GMT", now) == 30
    assert retry_after_seconds("Mon, 01 Jan 2024 11:00:00 GMT", now) == 0
    assert [retry_after_seconds(text, now) for text in (None, "", "soon", "-1", "1.5", "٣")] == [None] * 6
