"""Rules of methods over blocks, and the stored history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forgotten import EVERYONE, OnDisk
from tests.grpc.raw import update_bytes
from tests.running import TINY, make_state, tiny_config, tiny_payload

from puf_common.tensors.manifest import MODEL, UPDATE, Manifest
from puf_server.aggregation.fold import ArraySource, Contribution, NotFinite
from puf_server.aggregation.method_rules import Vectors, lengths, normal
from puf_server.aggregation.spreads import spreads
from puf_server.core.methods.blocks import Rule, TensorBlock, mean_of_buffers
from puf_server.maintenance.backup import backup
from puf_server.maintenance.restore import restore
from puf_server.storage.layout import history_name


def test_norms_are_those_of_parameters_only() -> None:
    payload = bytearray(TINY.nbytes(UPDATE))
    views = TINY.views(payload, UPDATE)
    views["layer.weight"][...] = 2.0
    views["layer.bias"][0] = 5.0
    views["norm.running_mean"][...] = 100.0
    assert lengths(ArraySource(payload), TINY.ranges(UPDATE)) == pytest.approx((np.sqrt(24.0), 5.0))


def run(rule: Rule, *updates: Contribution, others: dict[str, bytearray] | None = None) -> dict[str, Any]:
    out = bytearray()
    sources = {name: ArraySource(payload) for name, payload in (others or {}).items()}

    vectors = Vectors(TINY, ArraySource(tiny_payload()), sources, updates)
    assert [p.client for p in vectors.updates] == sorted(p.client for p in vectors.updates)
    vectors.combine(rule, lambda b: out.extend(b))
    return {name: view.copy() for name, view in TINY.views(out, MODEL).items()}


def test_a_rule_gets_base_others_and_updates_of_any_layout() -> None:
    head = Manifest(TINY.tensors[1:2])
    came = Contribution(
        part="main", client="b", samples=3, source=ArraySource(np.full(3, 0.5, "<f4").tobytes()), layout=head
    )

    def rule(block: TensorBlock) -> Any:
        [update] = block.updates
        if update.u is None:
            return block.others["old"]
        return block.w + update.u

    old = bytearray(TINY.nbytes(MODEL))
    made = run(rule, came, others={"old": old})
    assert made["layer.bias"].tolist() == [1.5, 2.5, 3.5]
    assert not made["layer.weight"].any()


def test_products_are_those_of_parameters_in_one_fixed_order() -> None:
    came = [
        Contribution(part="main", client=c, samples=1, source=ArraySource(update_bytes(v)), layout=TINY)
        for c, v in (("b", 2.0), ("a", 6.0))
    ]
    old = bytearray(TINY.nbytes(MODEL))
    vectors = Vectors(TINY, ArraySource(tiny_payload()), {"old": ArraySource(old)}, came)
    products = vectors.products()
    assert products.names == ("a/main", "b/main", "old")

    def flat(payload: Any, kind: Any) -> Any:
        views = TINY.views(payload, kind)
        return np.concatenate([views[t.name].astype(np.float64).ravel() for t in TINY.tensors if t.role == "parameter"])

    rows = [flat(update_bytes(6.0), UPDATE), flat(update_bytes(2.0), UPDATE), flat(tiny_payload(), MODEL)]
    assert np.array(products.rows) == pytest.approx(np.array([[x @ y for y in rows] for x in rows]))
    again = Vectors(TINY, ArraySource(tiny_payload()), {"old": ArraySource(old)}, came[::-1]).products()
    assert again == products


def test_an_update_of_one_layer_has_no_product_with_the_others() -> None:
    head = Manifest(TINY.tensors[1:2])
    came = Contribution(
        part="main", client="b", samples=3, source=ArraySource(np.full(3, 0.5, "<f4").tobytes()), layout=head
    )
    assert Vectors(TINY, ArraySource(tiny_payload()), {}, [came]).products().rows == ((0.75,),)


def test_buffers_are_averaged_and_never_scaled() -> None:
    came = [
        Contribution(part="main", client=c, samples=n, source=ArraySource(update_bytes(v)), layout=TINY)
        for c, n, v in (("b", 3, 2.0), ("a", 1, 6.0))
    ]
    made = run(lambda b: mean_of_buffers(b) if b.parameter < 0 else b.w, *came)
    one, other = (dict[str, Any](TINY.views(update_bytes(v), UPDATE)) for v in (2.0, 6.0))
    mean = (3 * one["norm.running_mean"] + other["norm.running_mean"]) / 4
    assert made["norm.running_mean"] == pytest.approx(mean)
    assert made["norm.steps"] == max(one["norm.steps"], other["norm.steps"])


def test_values_that_are_not_finite_never_become_a_model() -> None:
    with pytest.raises(NotFinite, match=r"layer\.weight"):
        run(lambda b: b.w * np.inf)


def _trained(directory: Path, method: str) -> Path:
    make_state(directory, tiny_config(plan={"rounds": 2, "min_clients": 3}, forgetting={"method": method}))
    with OnDisk(directory) as federation:
        federation.join(*EVERYONE)
        federation.work()
        assert federation.engine.state.number == 2
    return directory


def test_history_survives_a_restart_and_a_backup(tmp_path: Path) -> None:
    state = _trained(tmp_path / "state", "federaser")
    names = sorted(p.name for p in (state / "history").iterdir())
    assert len(names) == 3
    (state / "history" / "00000009.left-over-0123456789abcdef").write_bytes(b"")
    with OnDisk(state) as federation:
        kept = federation.engine.state.history
        assert sorted(history_name(r) for r in kept.values() if r.digest) == names
        assert sum(r.kind == "norms" for r in kept.values()) == 6
    # A start deletes files that no record names.
    assert sorted(p.name for p in (state / "history").iterdir()) == names
    backup(state, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", tmp_path / "again")
    with OnDisk(tmp_path / "again") as federation:
        assert federation.engine.state.history == kept
    for name in names:
        assert (tmp_path / "again" / "history" / name).read_bytes() == (state / "history" / name).read_bytes()


def test_distances_of_a_round_without_each_client_are_stored(tmp_path: Path) -> None:
    state = _trained(tmp_path / "state", "sifu")
    with OnDisk(state) as federation:
        records = federation.engine.state.history.values()
        assert {(r.kind, r.digest, r.nbytes) for r in records} == {("spreads", "", 0)}
        assert sorted((r.round, r.client) for r in records) == [(n, c) for n in (1, 2) for c in EVERYONE]
        assert all(len(r.norms) == 1 and r.norms[0] >= 0 for r in records)


def test_a_distance_is_that_between_the_averages_with_and_without_the_client(tmp_path: Path) -> None:
    make_state(tmp_path / "state", tiny_config(plan={"rounds": 1, "min_clients": 3, "server_lr": 0.5}))
    with OnDisk(tmp_path / "state") as federation:
        federation.join(*EVERYONE)
        values = {client: federation.submit(client) for client in EVERYONE}
        current = federation.engine.state.round
        assert current is not None
        found = spreads(federation.engine.store, current, 0.5)
    for left_out in EVERYONE:
        n = {c: current.received[f"{c}/main"].samples for c in EVERYONE}
        rows = {c: _parameters(update_bytes(v)) for c, v in values.items()}
        mean = sum(n[c] * rows[c] for c in EVERYONE) / sum(n.values())
        others = [c for c in EVERYONE if c != left_out]
        without = sum(n[c] * rows[c] for c in others) / sum(n[c] for c in others)
        assert found[f"{left_out}/main"] == pytest.approx(0.5 * float(np.linalg.norm(mean - without)))


def test_noise_is_normal_and_depends_on_the_secret() -> None:
    tensor = next(iter(TINY.ranges(MODEL)))
    one, same, other = (normal(key, tensor, 0, 20000) for key in (b"a", b"a", b"b"))
    assert one is not None
    assert other is not None
    assert np.array_equal(one, same)  # type: ignore[arg-type]
    assert abs(float(one.mean())) < 0.05
    assert float(one.std()) == pytest.approx(1, abs=0.05)
    assert abs(float(np.corrcoef(one, other)[0, 1])) < 0.05
    assert normal(b"a", tensor, 20000, 5) is not None
    assert all(normal(b"a", t, 0, 1) is None for t in TINY.ranges(MODEL) if t.spec.role != "parameter")


def test_a_repeated_fold_adds_the_same_noise_and_another_request_other_noise(tmp_path: Path) -> None:
    digests = []
    for number in range(2):
        state = _trained(tmp_path / str(number), "sifu")
        for _ in range(2):
            with OnDisk(state) as federation:
                if federation.engine.round_to_fold() is None:
                    federation.handlers.tickets.forget("cleo", "", 0.0)
                current = federation.engine.round_to_fold()
                assert current is not None
                # The process ends before the commit.
                digests.append(federation.engine.fold(current).digest)
    assert digests[0] == digests[1]
    assert digests[2] == digests[3] != digests[0]


def _parameters(payload: Any) -> Any:
    views = TINY.views(payload, UPDATE)
    return np.concatenate([views[t.name].astype(np.float64).ravel() for t in TINY.tensors if t.role == "parameter"])


def test_a_directory_without_its_history_is_refused(tmp_path: Path) -> None:
    state = _trained(tmp_path / "state", "federaser")
    next((state / "history").iterdir()).unlink()
    with pytest.raises(Exception, match="bring it back from a backup"):
        OnDisk(state)


def test_a_state_from_before_there_were_methods_is_served(tmp_path: Path) -> None:
    import sqlite3

    state = _trained(tmp_path / "state", "puf")
    with sqlite3.connect(state / "state.db") as db:
        db.execute("DROP TABLE history")
        for table in ("meta", "members", "tickets", "models", "records"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN crc")
        db.execute("UPDATE meta SET value = '3' WHERE key = 'schema'")
    with OnDisk(state) as federation:
        assert federation.engine.state.history == {}
