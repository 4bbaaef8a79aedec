"""The paper's tables as data: complete, with contradictions known."""

from __future__ import annotations

from collections import Counter

from puf_lab.paper import tables as paper


def test_all_rows_of_all_tables_exist() -> None:
    assert Counter(row.setting for row in paper.rows()) == {
        "cifar100-iid": 9,
        "cifar100-noniid": 9,
        "cifar100-noniid-e10": 8,
        "cifar10-noniid": 8,
        "cifar100-noniid-mitb0": 8,
        "cifar100-iid-samples": 5,
        "cifar100-noniid-samples": 5,
        "cifar100-noniid-two": 6,
        "cifar100-noniid-mitb0-two": 6,
        "prostate": 5,
    }


def test_values_equal_the_printed_ones() -> None:
    found = {(r.setting, r.method): r for r in paper.rows()}
    row = found["cifar100-noniid", "PUF-Regular"]
    assert (row["test"], row["forget"], row["forget_delta"], row["forget_sd"]) == (52.2, 35.4, 2.0, 2.0)
    assert (row["communication"], row["computation"], row["storage"]) == (6.44e9, 5.59e13, 4.49e7)
    assert found["prostate", "Retrain"]["loss"] == 0.22


def test_mean_differences_smaller_than_the_difference_of_means_are_found() -> None:
    found = {(row.setting, row.method, metric) for row, metric, *_ in paper.impossible()}
    assert {
        ("cifar100-noniid", "FedEraser", "song"),
        ("cifar100-noniid", "FedEraser", "yeom"),
        ("cifar100-noniid", "FedAU", "song"),
        ("cifar100-noniid-mitb0", "NoT", "song"),
        ("cifar100-noniid-mitb0-two", "NoT", "song"),
        ("cifar100-noniid-mitb0-two", "PUF-Regular", "song"),
        ("prostate", "NoT", "forget"),
    } <= found
    assert all(method != "Retrain" for _, method, _ in found)


def test_errata_name_existing_rows_and_columns() -> None:
    for erratum in paper.errata():
        touched = [r for r in paper.rows() if any(erratum.concerns(r, c) for c in erratum.columns)]
        assert touched, erratum.text
        assert all(column in row.values for row in touched for column in erratum.columns)
