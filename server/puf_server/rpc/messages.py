"""Conversion between values of the core and messages of the contract."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from itertools import islice
from typing import Any, TypeVar

from puf_common.errors import InvalidArgument, InvalidUpdate
from puf_common.network.status import MAX_MESSAGE_BYTES
from puf_common.receipts.evidence import Attack
from puf_common.receipts.gap import ClassTable, DoseReport, Gap
from puf_common.receipts.ranks import RankComparison
from puf_common.tensors.digests import digest_kind
from puf_common.tensors.manifest import Manifest
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core import assignments as core_work
from puf_server.core import scheduler, validation
from puf_server.core.config import FederationConfig
from puf_server.core.state.measurements import Sums
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.rounds import Part
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Flip, Mode, RequestForm, Scope, Strength
from puf_server.ingest.header import UploadHeader

E = TypeVar("E", bound=StrEnum)

_PAGE_BYTES = MAX_MESSAGE_BYTES // 2
ENCODINGS = {"full": ts.ENCODING_UNSPECIFIED, "f16": ts.ENCODING_F16, "bf16": ts.ENCODING_BF16, "i8": ts.ENCODING_I8}


def page(found: Iterable[Any], offset: int = 0, limit: int = 0) -> list[Any]:
    """The messages from `offset` on that fit into one reply, at most `limit` of them; 0 is no limit."""
    shown: list[Any] = []
    size = 0
    for message in islice(found, offset, offset + limit if limit else None):
        size += message.ByteSize() + 8
        if shown and size > _PAGE_BYTES:
            break
        shown.append(message)
    return shown


def position(state: State) -> fed.Position:
    phase = f"PHASE_{scheduler.phase(state).upper()}"
    return fed.Position(round=state.number, model_version=state.version, phase=phase)


def recipe(config: FederationConfig) -> fed.Recipe:
    return fed.Recipe(**config.recipe.model_dump(), fingerprint=config.recipe_fingerprint())


def policy(config: FederationConfig) -> fed.ForgettingPolicy:
    f = config.forgetting
    return fed.ForgettingPolicy(
        default_mode=f"MODE_{f.mode.upper()}",
        default_auto=f.method == "puf" and f.strength == "auto",
        max_dose=f.max_dose,
        max_doses=f.max_doses,
        default_kappa=f.kappa,
        min_kappa=f.min_kappa,
        max_kappa=f.max_kappa,
        max_eta_u=f.max_eta_u,
        default_epochs=f.epochs,
        max_epochs=f.max_epochs,
        special_allowed=f.special_allowed,
        default_flip=f"FLIP_{f.flip.upper()}",
        deadline_days=f.deadline_days,
        max_recovery_rounds=f.max_recovery_rounds,
        special_min_targets=f.special_min_targets,
    )


def train_work(work: core_work.Train, layout: Manifest) -> fed.TrainWork:
    """The work of an assignment. `layout` has the tensors that the update must contain."""
    current, assignment = work.round, work.assignment
    return fed.TrainWork(
        key=fed.WorkKey(
            membership=assignment.membership,
            round=current.number,
            attempt=current.attempt,
            part=f"PART_{assignment.part.upper()}",
        ),
        base_version=current.base,
        lr=work.lr,
        epochs=assignment.epochs,
        scale=assignment.scale,
        flip=f"FLIP_{assignment.flip.upper()}",
        samples=work.exact_samples,
        seconds_left=work.seconds_left,
        ticket_id=assignment.ticket,
        forget_request=work.forget_request if assignment.part is Part.FORGET else "",
        taken_requests=work.taken_requests if assignment.taken else (),
        plain=work.plain,
        training_id=core_work.training_id(work),
        routine="" if assignment.routine == "train" else assignment.routine,
        options=assignment.options,
        aux_version=assignment.aux,
        outputs=[t.name for t in layout.tensors] if assignment.outputs else (),
        stream_round=current.step.stream or 0,
        unseen=table_pb(assignment.unseen),
    )


def part_of(value: fed.Part) -> Part:
    try:
        return Part(fed.Part.Name(value).removeprefix("PART_").lower())
    except ValueError:
        raise InvalidUpdate("the update names no part: main, retain or forget") from None


def update_header(message: fed.UpdateHeader) -> UploadHeader:
    kind = digest_kind(message.digest_kind)
    if kind is None:
        raise InvalidUpdate("the server does not know this kind of digest; state a SHA-256")
    encodings = {number: name for name, number in ENCODINGS.items()}
    return UploadHeader(
        membership=message.key.membership,
        number=message.key.round,
        attempt=message.key.attempt,
        part=part_of(message.key.part),
        base=message.base_version,
        samples=message.samples,
        samples_processed=message.samples_processed,
        applied_scale=message.applied_scale,
        train_loss=message.train_loss,
        byte_length=message.byte_length,
        digest=message.digest,
        digest_kind=kind,
        encoding=encodings.get(message.encoding, ""),
        manifest_fingerprint=message.manifest_fingerprint,
        resume_at=message.resume_at,
        dose=_dose(message.dose) if message.HasField("dose") else None,
        unlearned_samples=message.unlearned_samples,
        unlearned_digest=message.unlearned_digest,
        base_digest=message.base_digest,
    )


def _dose(message: fed.DoseReport) -> DoseReport:
    return DoseReport(kappa=message.kappa, gap=gap(message.gap), hold=message.hold)


def request(message: tk.UnlearningRequest) -> RequestForm:
    rate = message.strength.WhichOneof("rate")
    return RequestForm(
        key=message.request_key,
        scope=_choice(Scope, tk.Scope, message.scope, "SCOPE_") or Scope.CLIENT,
        mode=_choice(Mode, tk.Mode, message.mode, "MODE_"),
        flip=_choice(Flip, tk.Flip, message.flip, "FLIP_"),
        strength=_strength(message.strength),
        kappa=message.strength.kappa if rate == "kappa" else None,
        eta_u=message.strength.eta_u if rate == "eta_u" else None,
        epochs=message.strength.epochs or None,
        forget_samples=message.forget_samples,
        retain_samples=message.retain_samples,
        reference=message.reference,
        replaces=message.replaces,
        received_at=message.received_at or None,
    )


def _strength(message: tk.Strength) -> Strength | None:
    """How the strength is chosen; None where the request leaves it to the federation."""
    rate = message.WhichOneof("rate")
    if rate == "auto" and not message.auto:
        raise InvalidArgument("auto is true or left out: without a rate the federation's default applies")
    return None if rate is None else Strength.AUTO if rate == "auto" else Strength.FIXED


def _choice(choices: type[E], enum: Any, value: int, prefix: str) -> E | None:
    """The core's value for a value of the contract; None where it was left open."""
    if value == 0:
        return None
    try:
        return choices(str(enum.Name(value)).removeprefix(prefix).lower())
    except ValueError:
        raise InvalidArgument(f"{value} is no {prefix.strip('_').lower()} that this server knows") from None


def sums(message: tk.EvaluationSums, announced: int | None = None) -> Sums:
    return validation.sums(
        message.samples,
        message.loss_sum,
        message.score_sum,
        message.confidences,
        table(message.classes) if message.HasField("classes") else None,
        announced,
    )


def table(message: tk.ClassTable) -> ClassTable:
    return ClassTable(bins=tuple(message.bins), sums=tuple(message.sums), squares=tuple(message.squares))


def table_pb(found: ClassTable | None) -> tk.ClassTable | None:
    return None if found is None else tk.ClassTable(bins=found.bins, sums=found.sums, squares=found.squares)


def gap(message: tk.Gap) -> Gap:
    return Gap(value=message.value, error=message.error)


def gap_pb(found: Gap | None) -> tk.Gap | None:
    return None if found is None else tk.Gap(value=found.value, error=found.error)


def sums_pb(total: Sums | None) -> tk.EvaluationSums | None:
    if total is None:
        return None
    return tk.EvaluationSums(
        samples=total.samples,
        loss_sum=total.loss_sum,
        score_sum=total.score_sum,
        confidences=total.confidences,
        classes=table_pb(total.classes),
    )


def attack(message: tk.MembershipAttack) -> Attack:
    found = Attack(
        threshold=message.threshold,
        forget_members=message.forget_members,
        forget_samples=message.forget_samples,
        holdout_members=message.holdout_members,
        holdout_samples=message.holdout_samples,
    )
    return validation.attack(found)


def ranks(message: tk.RankComparison) -> RankComparison:
    found = RankComparison(
        auc=message.auc, forget_samples=message.forget_samples, unseen_samples=message.unseen_samples
    )
    return validation.ranks(found)


def ranks_pb(found: RankComparison | None) -> tk.RankComparison | None:
    return None if found is None else tk.RankComparison(**asdict(found))


def attack_pb(found: Attack | None) -> tk.MembershipAttack | None:
    return None if found is None else tk.MembershipAttack(**asdict(found))


def score(total: Sums | None, clients: int) -> tk.Score | None:
    if total is None:
        return None
    return tk.Score(accuracy=total.score, loss=total.loss, samples=total.samples, clients=clients)


def roster_entry(member: Member | None) -> fed.RosterEntry | None:
    if member is None:
        return None
    return fed.RosterEntry(
        membership=member.membership,
        active=member.status is MemberStatus.ACTIVE,
        samples=member.samples,
        first_round=member.first_round,
        last_round=member.last_round,
    )
