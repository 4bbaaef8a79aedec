"""Rates of the last transfers and counters of bytes."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from puf_server.ingest.transfer_rates import TransferRate, TransferRates


def test_each_direction_has_the_rate_of_its_last_transfer() -> None:
    rates = TransferRates()
    rates.downloaded("a", 100, 2.0)
    assert rates.of("a") == TransferRate(down=50.0)
    rates.uploaded("a", 100, 4.0)
    rates.downloaded("a", 100, 1.0)
    assert rates.of("a") == TransferRate(down=100.0, up=25.0)
    assert rates.of("b") == TransferRate()


def test_a_transfer_without_duration_has_a_finite_rate() -> None:
    rates = TransferRates()
    rates.uploaded("a", 1, 0.0)
    assert rates.of("a").up == 1e6


def test_the_typical_rate_is_the_median_of_known_rates() -> None:
    rates = TransferRates()
    assert rates.typical() == TransferRate()
    for name, down in (("a", 10), ("b", 20), ("c", 90)):
        rates.downloaded(name, down, 1.0)
    rates.uploaded("c", 7, 1.0)
    assert rates.typical() == TransferRate(down=20.0, up=7.0)


def test_a_forgotten_name_has_no_rate() -> None:
    rates = TransferRates()
    rates.uploaded("a", 7, 1.0)
    assert rates.names() == ["a"]
    rates.forget("a")
    rates.forget("a")
    assert rates.names() == []


def test_bytes_counted_by_threads_are_not_lost() -> None:
    rates = TransferRates()

    def count() -> None:
        for _ in range(2000):
            rates.arrived(1)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(count) for _ in range(8)]:
                done.result()
    finally:
        sys.setswitchinterval(usual)
    rates.sent(3)
    assert (rates.bytes_received, rates.bytes_sent) == (16_000, 3)
