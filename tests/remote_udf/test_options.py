"""Options: values, precedence, and invalid options."""

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.effective_options import ScalarOptions, canonical, resolve
from remote_udf.errors import InvalidOption, RemoteUdfError
from remote_udf.option_values import size
from remote_udf.options import CALLER_OPTIONS, SCALAR_OPTIONS, OutputMode, RetryStrategy

durations = st.builds("{} {}".format, st.integers(1, 999), st.sampled_from(["ns", "us", "ms", "s", "min", "h", "d"]))
VALUES = {
    "buffer-capacity": st.integers(1, 10**6),
    "timeout": durations | st.timedeltas(timedelta(microseconds=1), timedelta(days=9)),
    "attempt-timeout": durations,
    "output-mode": st.sampled_from(["ordered", "UNORDERED", "allow_unordered", OutputMode.ORDERED]),
    "retry-strategy": st.sampled_from(["fixed-delay", "exponential_delay", RetryStrategy.FIXED_DELAY]),
    "fixed-delay": durations,
    "initial-delay": durations,
    "max-delay": durations,
    "max-attempts": st.integers(1, 99) | st.integers(1, 99).map(str),
    "retry-on": st.lists(st.sampled_from(["ValueError", OSError, "Exception"])) | st.just("KeyError, OSError"),
    "retry-empty": st.booleans() | st.sampled_from(["true", "FALSE"]),
    "batch-rows": st.integers(1, 10**6),
    "cache-ttl": st.sampled_from(["0 s", "7 d", "1.5 h"]),
    "cache-key": st.text("ab -", min_size=1).filter(str.strip),
    "cache-scope": st.sampled_from(["caller", "ALL"]),
    "cache-mode": st.sampled_from(["use", "refresh"]),
    "cache-errors": st.sampled_from(["0 ms", "10 min"]),
    "cache-timeout": st.sampled_from(["1 ms", "2 s"]),
    "cache-required": st.booleans() | st.sampled_from(["true", "FALSE"]),
}
layers = st.fixed_dictionaries({}, optional=VALUES)


def accepted(given_, source="test"):
    try:
        return canonical(given_, source=source)
    except InvalidOption as error:
        # Random layers may contradict each other; they have no other error.
        assert "cannot be combined" in str(error) or "longer than" in str(error) or "contradicts" in str(error)
        return None


def test_every_option_is_tried():
    assert set(VALUES) == set(SCALAR_OPTIONS)


@given(layers)
def test_canonical_text_is_canonical(layer):
    once = accepted(layer)
    if once is not None:
        assert canonical(once, source="test") == once


@given(layers)
def test_python_spelling_means_the_same(layer):
    assert accepted({name.replace("-", "_"): value for name, value in layer.items()}) == accepted(layer)


@given(layers)
def test_options_in_force_read_back_as_the_same(layer):
    text = accepted(layer)
    if text is not None:
        options = resolve(ScalarOptions, text)
        assert resolve(ScalarOptions, options.to_text()) == options


@given(st.lists(layers, max_size=4))
def test_each_option_is_the_last_layers_that_sets_it(given_layers):
    texts = [text for layer in given_layers if (text := accepted(layer)) is not None]
    for name, option in SCALAR_OPTIONS.items():
        setting = [text[name] for text in texts if name in text]
        expected = option.parse(setting[-1]) if setting else option.default
        assert getattr(resolve(ScalarOptions, *texts), option.attribute) == expected


def test_without_layers_the_defaults_hold():
    assert resolve(ScalarOptions) == ScalarOptions()


def test_none_counts_as_not_given():
    assert canonical({"timeout": None}, source="test") == {}


def test_an_unknown_option_is_refused_with_a_suggestion_and_the_known_ones():
    with pytest.raises(
        InvalidOption, match=r"here: unknown option 'time_out', did you mean 'timeout'\?.*buffer-capacity"
    ):
        canonical({"time_out": "1 s"}, source="here")


@pytest.mark.parametrize(
    ("name", "ours"),
    [("max_retries", "max-attempts"), ("retry-delay", "fixed-delay"), ("max-concurrent-operations", "buffer-capacity")],
)
def test_the_name_that_flink_has_for_an_option_leads_to_ours(name, ours):
    with pytest.raises(InvalidOption, match=f"did you mean '{ours}'"):
        canonical({name: "1"}, source="here")


def test_an_option_that_is_not_known_here_is_not_suggested():
    with pytest.raises(InvalidOption) as refused:
        canonical({"max-concurrent-operations": "1"}, source="here", known=(CALLER_OPTIONS,))
    assert "buffer-capacity" not in str(refused.value)


def test_options_of_the_caller_are_known_where_they_are_said_to_be():
    both = (SCALAR_OPTIONS, CALLER_OPTIONS)
    assert canonical({"on_error": "dead_letter"}, source="call", known=both) == {"on-error": "dead-letter"}
    with pytest.raises(InvalidOption, match="unknown option 'on_error'"):
        canonical({"on_error": "null"}, source="declaration")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("buffer-capacity", 0), ("buffer-capacity", -1), ("buffer-capacity", 1.0), ("buffer-capacity", True),
        ("buffer-capacity", "ten"), ("buffer-capacity", Decimal("1.5")), ("buffer-capacity", Decimal("Infinity")),
        ("buffer-capacity", []), ("timeout", 5), ("timeout", "0 s"), ("timeout", timedelta(-1)), ("timeout", "soon"),
        ("output-mode", "sideways"), ("retry-strategy", 3), ("retry-on", "a b"), ("retry-on", "A,,B"),
        ("retry-on", 5), ("retry-on", ["A", "b-c"]), ("max-errors", -1), ("max-error-rate", "101%"),
        ("max-error-rate", True), ("max-error-rate", "nan"), ("on-error", "shrug"), ("dead-letter", " "),
        ("dead-letter", 7),
    ],
)  # fmt: skip
def test_malformed_values_are_refused_by_name(name, value):
    with pytest.raises(InvalidOption, match=f"session: option '{name}': "):
        canonical({name: value}, source="session", known=(SCALAR_OPTIONS, CALLER_OPTIONS))


@pytest.mark.parametrize(
    "options",
    [
        {"retry_strategy": "none", "fixed_delay": "1 s"},
        {"retry_strategy": "none", "max_attempts": 2},
        {"retry_strategy": "fixed-delay", "max_delay": "1 s"},
        {"retry_strategy": "exponential-delay", "fixed_delay": "1 s"},
        {"initial_delay": "2 s", "max_delay": "1 s"},
        {"dead_letter": "/tmp/x", "on_error": "null"},
    ],
)
def test_options_of_one_layer_that_contradict_each_other_are_refused(options):
    with pytest.raises(InvalidOption):
        canonical(options, source="test", known=(SCALAR_OPTIONS, CALLER_OPTIONS))


def test_another_layers_leftovers_are_not_a_contradiction():
    options = resolve(ScalarOptions, {"fixed-delay": "1 s"}, {"retry-strategy": "none"})
    assert options.retry_strategy is RetryStrategy.NONE


def test_exception_classes_may_be_given_themselves():
    assert canonical({"retry_on": [OSError, "KeyError"]}, source="test") == {"retry-on": "OSError,KeyError"}
    assert canonical({"retry_on": OSError}, source="test") == {"retry-on": "OSError"}


def test_an_empty_list_of_exceptions_retries_nothing():
    assert resolve(ScalarOptions, canonical({"retry_on": []}, source="test")).retry_on == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1), ("1 b", 1), ("0.001 kB", 1), ("1.5kb", 1536), ("20 GB", 20 << 30), (" 2 TB ", 2 << 40)],
)
def test_sizes_have_units(value, expected):
    assert size(value) == expected


@given(st.integers(0, 2_000_000), st.sampled_from([("", 1), ("B", 1), ("kB", 1 << 10), ("MB", 1 << 20)]))
def test_a_size_is_at_least_one_byte(millionths, unit):
    text = f"{millionths // 10**6}.{millionths % 10**6:06} {unit[0]}"
    expected = millionths * unit[1] // 10**6
    if expected:
        assert size(text) == expected
    else:
        with pytest.raises(InvalidOption, match="is less than one byte"):
            size(text)


def test_shares_may_be_per_cent():
    known = (CALLER_OPTIONS,)
    assert canonical({"max_error_rate": "5%"}, source="t", known=known) == {"max-error-rate": "0.05"}


def test_invalid_options_are_value_errors_of_ours():
    assert issubclass(InvalidOption, ValueError) and issubclass(InvalidOption, RemoteUdfError)
