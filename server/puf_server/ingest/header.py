"""The header of an update as a value, and the checks that need nothing but the header and the state."""

from __future__ import annotations

import math
from dataclasses import dataclass

from puf_common.errors import Forgotten, InvalidUpdate, StaleRound
from puf_common.tensors.digests import DigestKind
from puf_common.tensors.manifest import UPDATE, Manifest
from puf_server.core import roster, rounds, validation
from puf_server.core.config import FederationConfig
from puf_server.core.methods.layers import outputs
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.rounds import Assignment, Round
from puf_server.core.state.state import State

_SHA256_BYTES = 32
# Client, membership, round, attempt, part, digest.
UploadKey = tuple[str, int, int, int, str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader(rounds.UpdateHeader):
    """What a client states about its update before it sends the tensors."""

    samples_processed: int
    train_loss: float
    # Of the update on disk. An encoding makes it smaller on the wire.
    byte_length: int
    digest: bytes
    digest_kind: DigestKind
    # "full", "f16", "bf16" or "i8"; empty: one that this server does not know.
    encoding: str
    manifest_fingerprint: bytes
    # The stream continues an earlier one after this many bytes on the wire; 0: it begins.
    resume_at: int

    def upload_key(self, name: str) -> UploadKey:
        """Names the same update in every stream that carries it."""
        return name, self.membership, self.number, self.attempt, self.part, self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUpdate:
    """An update whose header was accepted: what the client states, and what the round expects."""

    client: str
    header: UploadHeader
    round: Round
    assignment: Assignment
    # The tensors that the update carries.
    layout: Manifest

    @property
    def key(self) -> UploadKey:
        return self.header.upload_key(self.client)

    def wanted(self, state: State) -> bool:
        """Whether the round still waits for this update."""
        try:
            current, assignment = rounds.expected_assignment(state, self.client, self.header)
        except StaleRound:
            return False
        return assignment.key not in current.received


def check(
    header: UploadHeader, state: State, config: FederationConfig, manifest: Manifest, name: str
) -> ExpectedUpdate:
    """The update that an acceptable header stands for. Raises where the header is not acceptable."""
    if roster.member_of(state, name).status is not MemberStatus.ACTIVE:
        raise Forgotten(f"{name} was forgotten by this federation; its updates are refused", client=name)
    manifest.require(header.manifest_fingerprint, f"the update of {name}")
    current, assignment = rounds.expected_assignment(state, name, header)
    if not math.isfinite(header.applied_scale):
        raise InvalidUpdate("the stated scale is not finite")
    rounds.check_header(current, assignment, header)
    if header.base_digest and header.base_digest.hex() != state.models[current.base].digest:
        # After a restored backup, a version can be another model than before.
        raise StaleRound(
            f"the update starts from another model {header.base} than the round: join again",
            current_round=current.number,
        )
    validation.processed(header.samples_processed, assignment)
    wanted = config.plan.update_encoding
    if header.encoding != wanted:
        raise InvalidUpdate(f"updates of this federation travel as {wanted}, this one does not", expected=wanted)
    _check_unlearned(header, assignment, state)
    layout = outputs(manifest, assignment.outputs)
    expected = layout.nbytes(UPDATE)
    if header.byte_length != expected:
        raise InvalidUpdate(
            f"the update has {header.byte_length} bytes, the manifest asks for {expected}", expected=expected
        )
    return ExpectedUpdate(client=name, header=header, round=current, assignment=assignment, layout=layout)


def _check_unlearned(header: UploadHeader, assignment: Assignment, state: State) -> None:
    """Refuses a statement about unlearned samples that cannot be true."""
    if len(header.unlearned_digest) not in (0, _SHA256_BYTES):
        raise InvalidUpdate("the digest of the unlearned samples must be a SHA-256")
    if not header.unlearned_samples and not header.unlearned_digest:
        return
    ticket = state.tickets.get(assignment.ticket)
    expected = 0 if ticket is None else header.samples if ticket.whole_client else ticket.forget_samples
    if not expected or header.unlearned_samples != expected:
        raise InvalidUpdate(
            f"the update unlearns {header.unlearned_samples} samples, its ticket is about {expected}", expected=expected
        )
