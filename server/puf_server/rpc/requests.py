"""The requests of clients as plain functions: request in, reply out, no gRPC.

The service calls them. A federation without a network calls them, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator

from puf_common.errors import Forgotten, InvalidArgument, Mismatch, NotNow
from puf_common.names import check_name
from puf_common.tensors.base_model import require_base
from puf_common.tensors.chunks import CHUNK_BYTES
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts
from puf_common.version import VERSION
from puf_server.core import assignments as work
from puf_server.core import roster, rounds, shards
from puf_server.core.methods.layers import outputs
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.models import ModelVersion
from puf_server.core.state.state import State
from puf_server.core.unlearning import evaluation, history, model_versions
from puf_server.engine.engine import Engine
from puf_server.failpoints import hit
from puf_server.ingest.transfer_statistics import TransferRates
from puf_server.ingest.upload import Upload
from puf_server.ingest.uploads import Uploads
from puf_server.rpc import messages
from puf_server.rpc.ticket_requests import TicketRequests


class Handlers:
    """The request handlers of one federation. `tickets` has those about tickets and receipts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.config = engine.config
        self.rates = TransferRates(self.is_member)
        self.uploads = Uploads(engine)
        self.tickets = TicketRequests(engine, self.uploads)
        engine.subscribe(self._changed)

    def is_member(self, name: str) -> bool:
        member = self.engine.state.members.get(name)
        return member is not None and member.status is MemberStatus.ACTIVE

    def _changed(self, before: State, after: State) -> None:
        if before.members is not after.members:
            self.rates.drop_former_members()

    def describe(self, _: fed.DescribeRequest) -> fed.DescribeReply:
        c = self.config
        return fed.DescribeReply(
            federation_id=c.id,
            title=c.title,
            server_version=VERSION,
            model=c.model,
            model_options=c.model_options,
            task=c.task,
            recipe=messages.recipe(c),
            manifest=self.engine.manifest.to_pb(),
            plugin_version=c.plugin_version,
            rounds_planned=self.engine.state.planned,
            forgetting=messages.policy(c),
            position=self.position(),
            server_key=self.engine.store.key.public,
            method=c.forgetting.method,
            fallback=c.forgetting.fallback,
            remembers=history.words(c.forgetting),
            update_encoding=messages.ENCODINGS[c.plan.update_encoding],
            base_digest=bytes.fromhex(c.base_digest),
            base_seed=c.base_seed,
        )

    def lease_shard(self, name: str, request: fed.LeaseShardRequest) -> fed.LeaseShardReply:
        check_name(name, InvalidArgument)
        wish = request.wish if request.HasField("wish") else None
        shard = self.engine.call(lambda state, now: shards.lease(state, self.config, name, wish, now))
        return fed.LeaseShardReply(shard=shard, shards=self.config.plan.shards)

    def join(self, name: str, request: fed.JoinRequest) -> fed.JoinReply:
        check_name(name, InvalidArgument)
        c = self.config
        self.engine.manifest.require(request.manifest_fingerprint, f"the model of {name}")
        require_base(request.base_digest, bytes.fromhex(c.base_digest), f"the model of {name}", seed=c.base_seed)
        if request.recipe_fingerprint != c.recipe_fingerprint():
            raise Mismatch(
                f"{name} follows another recipe: fingerprint {request.recipe_fingerprint.hex()[:16]}, the federation's is "
                f"{c.recipe_fingerprint().hex()[:16]}; ask for the description again",
                theirs=request.recipe_fingerprint.hex(),
                ours=c.recipe_fingerprint().hex(),
            )
        if c.plugin_version and request.plugin_version != c.plugin_version:
            raise Mismatch(
                f"{name} runs version {request.plugin_version or 'none'} of the user's code, "
                f"the federation asks for {c.plugin_version}",
                theirs=request.plugin_version,
                ours=c.plugin_version,
            )
        if not request.instance:
            raise InvalidArgument("a worker must name its instance: any random text that no other worker uses")

        wanted = roster.JoinRequest(
            instance=request.instance[:64],
            token=secrets.token_hex(8),
            samples=request.samples,
            holdout=request.holdout_samples,
            unlabeled=request.unlabeled_samples,
            added=request.added_samples,
            device=request.device[:100],
            adapts=request.adapts,
            rejoin=request.rejoin,
            only_if_no_worker=request.only_if_no_worker,
        )

        def change(state: State, now: float) -> tuple[State, Member]:
            state = roster.join(state, self.engine.presence, c, name, wanted, now)
            state = rounds.samples_changed(state, name, now)
            # The member of this very join: a second worker may join right after it.
            return state, state.members[name]

        hit("join.before_persist")
        member = self.engine.call(change, lambda presence, now: presence.heard(name, now))
        hit("join.after_persist")
        return fed.JoinReply(
            session=member.session,
            membership=member.membership,
            heartbeat_seconds=c.plan.heartbeat_seconds,
            chunk_bytes=CHUNK_BYTES,
            position=self.position(),
            server_key=self.engine.store.key.public,
            remembers=history.words(c.forgetting),
            digest_kinds=[ts.DIGEST_KIND_BLAKE3],
        )

    def heartbeat(self, name: str, request: fed.HeartbeatRequest) -> fed.HeartbeatReply:
        def change(state: State, now: float) -> tuple[State, bool]:
            asked = work.work_for(state, self.config, name, request.session, now)
            wanted = work.training_id(asked) if isinstance(asked, work.Train) else ""
            return state, bool(request.training_id) and request.training_id != wanted

        abandon = self.engine.call(change, lambda presence, now: presence.heard(name, now, request.activity))
        if abandon and self.engine.shared:
            # Another server may have given this work just now.
            self.engine.refresh()
            abandon = self.engine.call(change)
        # A paused federation gives no work, and clients keep the work they have.
        paused = self.engine.state.paused or bool(self.engine.state.halted)
        return fed.HeartbeatReply(position=self.position(), abandon_training=abandon and not paused)

    def leave(self, name: str, request: fed.LeaveRequest) -> fed.LeaveReply:
        self.engine.call(lambda state, now: (roster.leave(state, name, request.session, now), None))
        return fed.LeaveReply()

    def work(self, name: str, session: str) -> fed.WaitForWorkReply | None:
        """The work of this worker now; None: none yet."""
        state = self.engine.state
        if state.stopping:
            order = fed.LeaveOrder(reason=fed.LeaveOrder.REASON_STOPPED, message="the operator stopped the federation")
            return fed.WaitForWorkReply(position=self.position(), leave=order)
        try:
            asked = work.work_for(state, self.config, name, session, self.engine.clock())
        except Forgotten as error:
            order = fed.LeaveOrder(reason=fed.LeaveOrder.REASON_FORGOTTEN, message=error.message)
            return fed.WaitForWorkReply(position=self.position(), leave=order)
        if isinstance(asked, work.Train):
            train = messages.train_work(asked, outputs(self.engine.manifest, asked.assignment.outputs))
            return fed.WaitForWorkReply(position=self.position(), train=train)
        if asked is not None:
            evaluate = fed.EvaluateWork(
                evaluation=asked.evaluation, version=asked.version, training_side=asked.training_side
            )
            return fed.WaitForWorkReply(position=self.position(), evaluate=evaluate)
        return None

    def decline(self, name: str, request: fed.DeclineWorkRequest) -> fed.DeclineWorkReply:
        key = f"{name}/{messages.part_of(request.key.part)}"

        def change(state: State, now: float) -> tuple[State, None]:
            if request.session:
                roster.session_member(state, name, request.session)
            else:
                roster.member_of(state, name)
            current = state.round
            if current is None or (current.number, current.attempt) != (request.key.round, request.key.attempt):
                return state, None
            return rounds.decline(state, name, key, request.reason, now, for_good=request.for_good), None

        self.engine.call(change)
        return fed.DeclineWorkReply(position=self.position())

    def stop_waiting_for(self, name: str, why: str) -> None:
        """The open round does not wait for this client any more, because its updates are refused."""

        def change(state: State, now: float) -> tuple[State, None]:
            for assignment in state.round.missing if state.round else ():
                if assignment.client == name and state.round and assignment.key not in state.round.declined:
                    state = rounds.decline(state, name, assignment.key, f"its updates are refused: {why}", now)
            return state, None

        self.engine.call(change)

    def report_evaluation(self, name: str, request: fed.ReportEvaluationRequest) -> fed.ReportEvaluationReply:
        member = roster.member_of(self.engine.state, name)
        # Samples that a request has taken out of training since the client was asked are still counted.
        mine = member.samples + sum(t.forget_samples for t in self.engine.state.tickets.values() if t.client == name)
        answer = messages.sums(request.holdout, member.holdout)
        training = messages.sums(request.training, mine) if request.HasField("training") else None

        def change(state: State, _: float) -> tuple[State, None]:
            return evaluation.answer(state, name, request.evaluation, request.version, answer, training), None

        hit("evaluation.before_persist")
        self.engine.call(change)
        hit("evaluation.after_persist")
        return fed.ReportEvaluationReply(position=self.position())

    def begin_upload(self, name: str, header: fed.UpdateHeader) -> Upload:
        """Checks an update by its header. For callers without a network; the service streams uploads itself."""
        upload = self.uploads.begin(name, messages.update_header(header))
        if upload is None:
            raise NotNow("a committed round has counted this update")
        return upload

    def finish_upload(self, upload: Upload) -> fed.SubmitUpdateReply:
        """Publishes and books an update whose chunks are all written."""
        upload.publish()
        duplicate = upload.book()
        return fed.SubmitUpdateReply(position=self.position(), duplicate=duplicate)

    def model_for(self, name: str, version: int) -> ModelVersion:
        """The version, if this client may fetch it."""
        state = self.engine.state
        member = roster.member_of(state, name)
        return model_versions.may_fetch(state, self.config, member, version, self.engine.clock())

    def model_header(self, model: ModelVersion) -> fed.ModelHeader:
        return fed.ModelHeader(
            version=model.version,
            round=model.round,
            byte_length=model.nbytes,
            digest=bytes.fromhex(model.digest),
            blake3=bytes.fromhex(model.blake3),
            manifest_fingerprint=self.engine.manifest.fingerprint,
        )

    def model_chunks(self, model: ModelVersion) -> Generator[ts.Chunk, None, None]:
        with self.engine.store.models.read(model) as source:
            for index, block in enumerate(source.blocks(CHUNK_BYTES)):
                yield ts.Chunk(offset=index * CHUNK_BYTES, data=bytes(block))

    def count_sent(self, nbytes: int) -> None:
        """Counts a model that a client has fetched."""
        self.rates.count(sent=nbytes)
        self.engine.attend(lambda presence, _: presence.sent(nbytes))

    def position(self) -> fed.Position:
        return messages.position(self.engine.state)
