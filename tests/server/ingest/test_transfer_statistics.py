"""Rates of the last transfers and counters of bytes."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from puf_server.ingest.transfer_statistics import TransferRate, TransferRates


def test_each_direction_has_the_rate_of_its_last_transfer() -> None:
    rates = TransferRates(lambda name: True)
    rates.record("a", 2.0, down=100)
    assert rates.of("a") == TransferRate(down=50.0)
    rates.record("a", 4.0, up=100)
    rates.record("a", 1.0, down=100)
    assert rates.of("a") == TransferRate(down=100.0, up=25.0)
    assert rates.of("b") == TransferRate()


def test_a_transfer_without_duration_has_a_finite_rate() -> None:
    rates = TransferRates(lambda name: True)
    rates.record("a", 0.0, up=1)
    assert rates.of("a").up == 1e6


def test_the_typical_rate_is_the_median_of_known_rates() -> None:
    rates = TransferRates(lambda name: True)
    assert rates.typical() == TransferRate()
    for name, down in (("a", 10), ("b", 20), ("c", 90)):
        rates.record(name, 1.0, down=down)
    rates.record("c", 1.0, up=7)
    assert rates.typical() == TransferRate(down=20.0, up=7.0)


def test_rates_of_former_members_are_dropped() -> None:
    members = {"a", "b"}
    rates = TransferRates(members.__contains__)
    rates.record("a", 1.0, up=7)
    rates.record("b", 1.0, up=7)
    members.remove("a")
    rates.drop_former_members()
    assert (rates.of("a"), rates.of("b")) == (TransferRate(), TransferRate(up=7.0))


def test_a_transfer_that_ends_after_its_client_was_forgotten_leaves_no_rate() -> None:
    rates = TransferRates(lambda name: False)
    rates.record("a", 1.0, up=7)
    assert rates.of("a") == TransferRate()


def test_bytes_counted_by_threads_are_not_lost() -> None:
    rates = TransferRates(lambda name: True)

    def count() -> None:
        for _ in range(2000):
            rates.count(received=1)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(count) for _ in range(8)]:
                done.result()
    finally:
        sys.setswitchinterval(usual)
    rates.count(sent=3)
    assert (rates.bytes_received, rates.bytes_sent) == (16_000, 3)
