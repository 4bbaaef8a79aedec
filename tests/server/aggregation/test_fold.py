"""The weighted sum: worked examples of PUF and invariants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from puf_common.tensors.manifest import UPDATE, Manifest, TensorSpec
from puf_common.tensors.scaling import scale_update
from puf_server.aggregation.fold import ArraySource, Contribution, NotFinite, fold
from puf_server.core.methods import puf
from puf_server.core.methods.view import Target
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.tickets import Flip, Mode, Request, Scope, Ticket

VECTOR = Manifest((TensorSpec("w", "f32", (2,)),))
Delta = tuple[float, float]


def folded(
    base: Sequence[float], updates: Sequence[Contribution], denominator: int | None = None, **options: Any
) -> NDArray[np.float32]:
    out = bytearray()
    fold(VECTOR, ArraySource(np.array(base, "<f4").tobytes()), updates, out.extend, denominator=denominator, **options)
    return np.frombuffer(bytes(out), "<f4")


def update(client: str, delta: Sequence[float], samples: int, **more: Any) -> Contribution:
    return Contribution(
        client=client, part="main", samples=samples, source=ArraySource(np.array(delta, "<f4").tobytes()), **more
    )


def member(name: str, samples: int) -> Member:
    return Member(
        name=name,
        membership=1,
        status=MemberStatus.ACTIVE,
        samples=samples,
        holdout=0,
        generation=1,
        session="1.t",
        instance="i",
        device="cpu",
        joined_at=0.0,
    )


def ticket(
    name: str, mode: str, *, kappa: float | None = None, eta_u: float | None = None, flip: str = "client"
) -> Ticket:
    return Ticket(
        id=f"t-{name}",
        client=name,
        membership=1,
        request=Request(
            key="k",
            scope=Scope.CLIENT,
            mode=Mode(mode),
            flip=Flip(flip),
            kappa=kappa,
            eta_u=eta_u,
            epochs=1,
            filed_at=0.0,
            received_at=0.0,
        ),
        deadline_at=1.0,
    )


def puf_round(
    base: Delta,
    deltas: Mapping[str, tuple[Delta, int]],
    targets: Sequence[str],
    mode: str,
    *,
    flip: str = "client",
    eta_r: float = 1.0,
    **strength: float,
) -> NDArray[np.float32]:
    """An unlearning round as clients and server compute it: plan, scale on the given side, fold with the fixed n."""
    members = {name: member(name, n) for name, (_, n) in deltas.items()}
    plan = puf.plan(
        [Target(ticket(name, mode, flip=flip, **strength), members[name]) for name in targets],
        [m for name, m in sorted(members.items()) if name not in targets],
        mode=Mode(mode),
        retained_rate=eta_r,
        epochs=1.0,
    )
    contributions = []
    for assignment in plan.assignments:
        payload = bytearray(np.array(deltas[assignment.client][0], "<f4").tobytes())
        if assignment.flip == "client":
            scale_update(VECTOR, payload, assignment.scale)
        contributions.append(
            Contribution(
                client=assignment.client,
                part=assignment.part,
                samples=assignment.samples,
                source=ArraySource(payload),
                scale=assignment.scale if assignment.flip == "server" else 1.0,
                negated=assignment.negated,
            )
        )
    return folded(base, contributions, plan.denominator)


WORKED = {"a": ((0.2, 0.4), 3), "b": ((-0.4, 0.0), 1), "u": ((1.0, -1.0), 1)}


def test_regular_worked_numbers() -> None:
    result = puf_round((1, -2), WORKED, ["u"], "regular", eta_u=20.0)
    np.testing.assert_allclose(result, (-2.96, 2.24), rtol=1e-6)


def test_special_worked_numbers() -> None:
    np.testing.assert_allclose(puf_round((1, -2), WORKED, ["u"], "special", eta_u=2.0), (-1, 0), atol=1e-6)


def test_special_two_equal_targets_worked_numbers() -> None:
    deltas: dict[str, tuple[Delta, int]] = {"u": ((1, -1), 1), "v": ((0, 2), 1)}
    np.testing.assert_allclose(puf_round((1, -2), deltas, ["u", "v"], "special", eta_u=2.0), (0, -3), atol=1e-6)


def test_eta_u_of_minus_one_is_a_fedavg_round() -> None:
    everyone = [update(name, delta, n) for name, (delta, n) in WORKED.items()]
    as_unlearning = puf_round((1, -2), WORKED, ["u"], "regular", eta_u=-1.0)
    np.testing.assert_array_equal(as_unlearning, folded((1, -2), everyone))


def test_eta_u_of_zero_in_special_changes_nothing() -> None:
    np.testing.assert_array_equal(puf_round((1, -2), WORKED, ["u"], "special", eta_u=0.0), np.array((1, -2), "<f4"))


def test_no_target_is_fedavg() -> None:
    result = puf_round((1, -2), WORKED, [], "regular", kappa=2.0)
    everyone = [update(name, delta, n) for name, (delta, n) in WORKED.items()]
    np.testing.assert_array_equal(result, folded((1, -2), everyone))


floats = st.floats(-10, 10, width=32, allow_subnormal=False)
vectors = st.tuples(floats, floats)
federations = st.dictionaries(
    st.sampled_from("abcdefgh"), st.tuples(vectors, st.integers(1, 500)), min_size=2, max_size=8
)


@given(federations, st.floats(0.25, 4, width=16))
def test_special_is_linear_in_the_strength(deltas: dict[str, tuple[Delta, int]], eta: float) -> None:
    targets = sorted(deltas)[:2]
    once = puf_round((0, 0), deltas, targets, "special", eta_u=eta)
    twice = puf_round((0, 0), deltas, targets, "special", eta_u=2 * eta)
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-6, atol=1e-6)


@given(federations, st.randoms(use_true_random=False))
def test_order_of_arrival_changes_nothing_to_the_bit(deltas: dict[str, tuple[Delta, int]], shuffle: Any) -> None:
    updates = [update(name, delta, n) for name, (delta, n) in deltas.items()]
    first = folded((1, -2), updates)
    shuffle.shuffle(updates)
    assert folded((1, -2), updates).tobytes() == first.tobytes()


@given(federations, st.sampled_from(["regular", "special"]), st.integers(1, 3), st.floats(0.5, 4, width=16))
def test_flip_on_either_side_gives_the_same_bits(
    deltas: dict[str, tuple[Delta, int]], mode: str, count: int, kappa: float
) -> None:
    targets = sorted(deltas)[:count]
    there = puf_round((1, -2), deltas, targets, mode, flip="client", kappa=kappa)
    here = puf_round((1, -2), deltas, targets, mode, flip="server", kappa=kappa)
    assert there.tobytes() == here.tobytes()


@given(federations, st.sampled_from(["regular", "special"]), st.floats(0.5, 4, width=16))
def test_kappa_means_the_same_for_any_number_and_size_of_clients(
    deltas: dict[str, tuple[Delta, int]], mode: str, kappa: float
) -> None:
    """If every other update is zero, each target moves the model by exactly -kappa times its update."""
    targets = sorted(deltas)[:2]
    lone = {name: (delta if name in targets else (0.0, 0.0), n) for name, (delta, n) in deltas.items()}
    result = puf_round((0, 0), lone, targets, mode, kappa=kappa)
    expected = -kappa * np.sum([deltas[t][0] for t in targets], axis=0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@given(federations)
def test_an_absent_retained_client_contributes_zero(deltas: dict[str, tuple[Delta, int]]) -> None:
    """The fixed n keeps the strength when a retained client does not answer."""
    target, *others = sorted(deltas)
    zeroed = {name: ((0.0, 0.0) if name == others[0] else delta, n) for name, (delta, n) in deltas.items()}
    members = {name: member(name, n) for name, (_, n) in deltas.items()}
    plan = puf.plan(
        [Target(ticket(target, "regular", kappa=2.0), members[target])],
        [members[name] for name in others],
        mode=Mode.REGULAR,
        retained_rate=1.0,
        epochs=1.0,
    )
    contributions = []
    for assignment in plan.assignments:
        if assignment.client != others[0]:
            payload = bytearray(np.array(deltas[assignment.client][0], "<f4").tobytes())
            scale_update(VECTOR, payload, assignment.scale)
            contributions.append(
                Contribution(
                    client=assignment.client, part="main", samples=assignment.samples, source=ArraySource(payload)
                )
            )
    absent = folded((1, -2), contributions, plan.denominator)
    np.testing.assert_array_equal(absent, puf_round((1, -2), zeroed, [target], "regular", kappa=2.0))


WITH_BUFFERS = Manifest(
    (
        TensorSpec("w", "f32", (1,)),
        TensorSpec("running_var", "f32", (1,), "buffer"),
        TensorSpec("steps", "i64", (), "buffer"),
    )
)


def with_buffers(w: float, var: float, steps: int) -> bytearray:
    return bytearray(np.float32(w).tobytes() + np.float32(var).tobytes() + np.int64(steps).tobytes())


def test_buffers_are_averaged_over_retained_clients_and_never_negated() -> None:
    target = with_buffers(1.0, 9.0, 99)
    scale_update(WITH_BUFFERS, target, -20.0)
    assert WITH_BUFFERS.views(target, UPDATE)["running_var"] == 9.0
    assert WITH_BUFFERS.views(target, UPDATE)["steps"] == 99
    updates = [
        Contribution(client="a", part="main", samples=3, source=ArraySource(with_buffers(0.0, 2.0, 7))),
        Contribution(client="b", part="main", samples=1, source=ArraySource(with_buffers(0.0, 4.0, 9))),
        Contribution(client="u", part="main", samples=1, source=ArraySource(target), negated=True),
    ]
    out = bytearray()
    fold(WITH_BUFFERS, ArraySource(with_buffers(1.0, 1.0, 1)), updates, out.extend, denominator=5)
    views = WITH_BUFFERS.views(out, UPDATE)
    assert views["w"] == 1.0 - 20.0 / 5
    assert views["running_var"] == 2.5
    assert views["steps"] == 9


def test_special_leaves_buffers_as_they_are() -> None:
    updates = [
        Contribution(client="u", part="main", samples=1, source=ArraySource(with_buffers(-2, 9, 9)), negated=True)
    ]
    out = bytearray()
    fold(WITH_BUFFERS, ArraySource(with_buffers(1.0, 1.5, 3)), updates, out.extend, denominator=1)
    assert out == with_buffers(-1.0, 1.5, 3)


def test_large_tensors_are_folded_block_by_block_like_small_ones() -> None:
    size = (1 << 16) + 7
    manifest = Manifest((TensorSpec("w", "f32", (size,)),))
    rng = np.random.default_rng(3)
    base, u, v = (rng.normal(size=size).astype("<f4") for _ in range(3))
    out = bytearray()
    updates = [
        Contribution(client="v", part="main", samples=1, source=ArraySource(v.tobytes())),
        Contribution(client="u", part="main", samples=2, source=ArraySource(u.tobytes())),
    ]
    fold(manifest, ArraySource(base.tobytes()), updates, out.extend, server_lr=0.5)
    total = u.astype("f8") * (2 / 3) + v.astype("f8") * (1 / 3)
    np.testing.assert_array_equal(np.frombuffer(out, "<f4"), (base + 0.5 * total).astype("<f4"))


def test_a_sum_that_overflows_is_refused_with_the_tensors_name() -> None:
    with pytest.raises(NotFinite, match="tensor w"):
        folded((3e38, 0), [update("a", (3e38, 0), 1)])
