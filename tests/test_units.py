import pytest

from dtr_fx.units import format_bytes, format_percent, format_seconds, parse_bytes, parse_percent


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1024**2 - 1, "1.00 MiB"),  # never "1024 KiB"
        (100 * 2**20, "100 MiB"),
        (int(12.34 * 2**30), "12.3 GiB"),
        (5 * 2**40, "5.00 TiB"),
        (-(2**20), "-1.00 MiB"),
    ],
)
def test_bytes_are_shown_in_binary_units_with_three_digits(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


def test_a_percent_that_is_not_zero_never_reads_zero() -> None:
    assert format_percent(0.6) == "60.0%"
    assert format_percent(0.0) == "0.0%"
    assert format_percent(1e-6) == "<0.1%"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.50 s"), (0.0123, "12.3 ms"), (4.56e-6, "4.56 µs"), (3e-9, "3.00 ns"), (0.99996, "1.00 s")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8GiB", 8 * 2**30),
        ("512 MiB", 512 * 2**20),
        (" 100KiB ", 100 * 2**10),
        ("8GB", 8 * 10**9),
        ("512MB", 512 * 10**6),
        ("100KB", 100_000),
        ("100kB", 100_000),
        ("123B", 123),
        ("1.1KB", 1100),  # exact, not 1.1 as a float
    ],
)
def test_parse_bytes(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["8gigs", "8 Gb", "8gb", "8G"])
def test_a_wrong_unit_is_told_the_right_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"'8GiB' \(binary\) or '8GB' \(decimal\)"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "GiB", "8 parsecs", "8", "1 2MiB", "nanB"])
def test_what_is_not_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_bytes(text)


def test_parse_percent() -> None:
    assert parse_percent("60%") == 0.6
    assert parse_percent(" 12.5 % ") == 0.125
    with pytest.raises(ValueError, match="'%'"):
        parse_percent("60MiB")
