"""puf.v1.Operator over grpc.aio: status, lists and commands for the operator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from puf_common.errors import InvalidArgument, NotNow
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import operator_pb2_grpc as rpc
from puf_common.version import VERSION
from puf_server.core import operations, roster, scheduler, shards, tickets
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning import model_versions, rollback
from puf_server.engine import receipts
from puf_server.rpc import messages, operator_messages
from puf_server.rpc.audit_feed import AuditFeed
from puf_server.rpc.calls import Context, Threads, answered, streamed
from puf_server.rpc.requests import Handlers


class OperatorService(rpc.OperatorServicer):
    def __init__(self, handlers: Handlers, threads: Threads, audit: AuditFeed) -> None:
        self._handlers = handlers
        self._audit = audit
        self._engine = handlers.engine
        self._config = handlers.config
        self._threads = threads
        self._started_at = self._engine.clock()

    async def _newest(self) -> State:
        """The newest state, also where another server has just changed it."""
        if self._engine.shared:
            await self._threads.run(self._engine.refresh)
        return self._engine.state

    async def _change(self, change: Callable[[State, float], State]) -> fed.Position:
        """Changes the state; returns the position after that."""
        await self._threads.run(self._engine.call, lambda state, now: (change(state, now), None))
        return self._handlers.position()

    @answered
    async def Status(self, request: op.StatusRequest, context: Context) -> op.StatusReply:
        state, presence, now = await self._newest(), self._engine.presence, self._engine.clock()
        scored = [m for m in state.models.values() if m.score is not None]
        newest = max(scored, key=lambda m: m.version, default=None)
        return op.StatusReply(
            federation_id=self._config.id,
            title=self._config.title,
            position=self._handlers.position(),
            rounds_planned=state.planned,
            rounds_trained=state.trained,
            waiting_for=scheduler.waiting_for(state, presence, self._config, now),
            clients_active=sum(m.status is MemberStatus.ACTIVE for m in state.members.values()),
            clients_alive=sum(roster.worker_alive(presence, name, self._config, now) for name in state.members),
            tickets_open=sum(t.open for t in state.tickets.values()),
            tickets_failed=sum(t.state is TicketState.FAILED for t in state.tickets.values()),
            tickets_overdue=sum(t.waiting and now >= t.deadline_at for t in state.tickets.values()),
            trouble=self._engine.troubles.text(),
            round=operator_messages.round_info(state.round, presence) if state.round else None,
            score=messages.score(newest.score, newest.score_clients) if newest else None,
            score_version=newest.version if newest else 0,
            bytes_received=self._handlers.rates.bytes_received,
            bytes_sent=self._handlers.rates.bytes_sent,
            uptime_seconds=now - self._started_at,
            server_version=VERSION,
            download_rate=self._handlers.rates.typical().down,
            upload_rate=self._handlers.rates.typical().up,
            server_key=self._engine.store.key.public,
        )

    @answered
    async def ListClients(self, request: op.ListClientsRequest, context: Context) -> op.ListClientsReply:
        state, presence, now = await self._newest(), self._engine.presence, self._engine.clock()
        names = operator_messages.selected_clients(request, state, presence, self._config, now)
        found = (self._client(n, state, now) for n in names[request.offset :])
        return op.ListClientsReply(clients=messages.page(found, limit=request.limit), total=len(names))

    @answered
    async def ListRounds(self, request: op.ListRoundsRequest, context: Context) -> op.ListRoundsReply:
        found = operator_messages.selected_rounds(request, await self._newest(), self._engine.presence)
        return op.ListRoundsReply(rounds=messages.page(found, limit=request.limit or 20))

    @answered
    async def ListTickets(self, request: op.ListTicketsRequest, context: Context) -> op.ListTicketsReply:
        chosen = operator_messages.selected_tickets(request, await self._newest())
        found = (self._handlers.tickets.view(None, t.id) for t in chosen[request.offset :])
        return op.ListTicketsReply(tickets=messages.page(found, limit=request.limit), total=len(chosen))

    @answered
    async def ListModels(self, request: op.ListModelsRequest, context: Context) -> op.ListModelsReply:
        models = (await self._newest()).models
        chosen = [models[v] for v in sorted(models, reverse=True) if request.status in ("", models[v].status)]
        found = map(operator_messages.model_info, chosen[request.offset :])
        return op.ListModelsReply(models=messages.page(found, limit=request.limit), total=len(chosen))

    @answered
    async def ListAudit(self, request: op.ListAuditRequest, context: Context) -> op.ListAuditReply:
        entries = await self._audit.page(request)
        return op.ListAuditReply(entries=messages.page(map(operator_messages.audit_entry, entries)))

    @streamed
    async def FollowAudit(self, request: op.FollowAuditRequest, context: Context) -> AsyncIterator[op.FollowAuditReply]:
        async for entries in self._audit.after(request.after):
            found = [operator_messages.audit_entry(entry) for entry in entries]
            while found:
                fitting = messages.page(found)
                found = found[len(fitting) :]
                yield op.FollowAuditReply(entries=fitting)

    @answered
    async def Pause(self, request: op.PauseRequest, context: Context) -> op.PauseReply:
        return op.PauseReply(position=await self._change(operations.pause))

    @answered
    async def Resume(self, request: op.ResumeRequest, context: Context) -> op.ResumeReply:
        await self._threads.run(self._engine.accept_clock)
        return op.ResumeReply(position=await self._change(operations.resume))

    @answered
    async def Extend(self, request: op.ExtendRequest, context: Context) -> op.ExtendReply:
        def change(state: State, now: float) -> tuple[State, int]:
            state = operations.extend(state, request.rounds, now)
            return state, state.planned

        planned = await self._threads.run(self._engine.call, change)
        return op.ExtendReply(rounds_planned=planned, position=self._handlers.position())

    @answered
    async def Stop(self, request: op.StopRequest, context: Context) -> op.StopReply:
        position = await self._change(operations.stop)
        await self._threads.run(self._engine.write, self._engine.store.database.stop_others)
        return op.StopReply(position=position)

    @answered
    async def Readmit(self, request: op.ReadmitRequest, context: Context) -> op.ReadmitReply:
        await self._change(lambda state, now: roster.readmit(state, request.client, now))
        return op.ReadmitReply(client=self._client(request.client, self._engine.state, self._engine.clock()))

    @answered
    async def ReleaseShard(self, request: op.ReleaseShardRequest, context: Context) -> op.ReleaseShardReply:
        shard = await self._threads.run(
            self._engine.call, lambda state, now: shards.release(state, request.client, now)
        )
        return op.ReleaseShardReply(shard=shard)

    @answered
    async def Allow(self, request: op.AllowRequest, context: Context) -> op.AllowReply:
        match request.WhichOneof("whom"):
            case "client":
                position = await self._change(lambda state, now: roster.approve(state, request.client, now))
            case "ticket_id":
                position = await self._change(lambda state, now: tickets.approve(state, request.ticket_id, now))
            case _:
                raise InvalidArgument("the request must name a client or a ticket to approve")
        return op.AllowReply(position=position)

    @answered
    async def Release(self, request: op.ReleaseRequest, context: Context) -> op.ReleaseReply:
        return op.ReleaseReply(position=await self._change(rollback.release))

    @answered
    async def Rollback(self, request: op.RollbackRequest, context: Context) -> op.RollbackReply:
        def change(state: State, now: float) -> tuple[State, int]:
            state = rollback.begin(state, self._config, now)
            assert state.round is not None
            return state, state.round.base

        version = await self._threads.run(self._engine.call, change)
        return op.RollbackReply(version=version, position=self._handlers.position())

    @answered
    async def Forget(self, request: op.ForgetRequest, context: Context) -> op.ForgetReply:
        ticket, duplicate = await self._threads.run(
            self._handlers.tickets.forget, request.client, request.reference, request.received_at
        )
        return op.ForgetReply(ticket=ticket, duplicate=duplicate)

    @answered
    async def IssueReceipt(self, request: op.IssueReceiptRequest, context: Context) -> op.IssueReceiptReply:
        await self._newest()
        return op.IssueReceiptReply(receipt=await self._threads.run(receipts.issue, self._engine, request.ticket_id))

    @streamed
    async def ExportModel(self, request: op.ExportModelRequest, context: Context) -> AsyncIterator[op.ExportModelReply]:
        await self._newest()
        model = self._exportable(request)
        header = op.ExportHeader(
            model=self._handlers.model_header(model),
            status=model.status,
            manifest=self._engine.manifest.to_pb(),
            base_digest=bytes.fromhex(self._config.base_digest),
            base_seed=self._config.base_seed,
        )
        facts = {"version": model.version, "digest": model.digest, "status": model.status}
        await self._change(lambda state, now: state.note("model.exported", now, **facts))
        yield op.ExportModelReply(header=header)
        chunks = self._handlers.model_chunks(model)
        try:
            while (chunk := await self._threads.run_on_files(next, chunks, None)) is not None:
                yield op.ExportModelReply(chunk=chunk)
        finally:
            await self._threads.run_on_files(chunks.close)

    def _client(self, name: str, state: State, now: float) -> op.ClientInfo:
        info = operator_messages.client_info(name, state, self._engine.presence, self._config, now)
        rate = self._handlers.rates.of(name)
        info.download_rate, info.upload_rate = rate.down, rate.up
        return info

    def _exportable(self, request: op.ExportModelRequest) -> ModelVersion:
        state = self._engine.state
        named = request.version if request.HasField("version") else None
        model = model_versions.newest_ready(state) if named is None else model_versions.readable(state, named)
        if model.status is ModelStatus.AUXILIARY:
            raise NotNow(f"model {model.version} is an intermediate result of a method and is never exported")
        if model.status is not ModelStatus.READY and not request.allow_unready:
            raise NotNow(
                f"model {model.version} is {model.status}, not ready; export it anyway with --unready",
                version=model.version,
                status=model.status,
            )
        return model
