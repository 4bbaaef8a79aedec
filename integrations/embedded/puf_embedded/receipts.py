"""The receipt of an embedded federation: the server's receipt, without what only PUF's own server can state."""

from __future__ import annotations

from puf_common.audit_chain import Head
from puf_common.receipts.content import ModelFacts, ReceiptContent, Stages
from puf_server.core.config import FederationConfig
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket
from puf_server.core.unlearning.receipt_content import build

LIMITS = (
    "Models are stored and handed out by another framework: which copies exist, and whether older models were deleted, is "
    "not recorded here."
)


def content_of(
    state: State, config: FederationConfig, ticket: Ticket, *, head: Head, now: float, software: str
) -> ReceiptContent:
    """The content of the receipt. It names no deleted models, exports or backups: the framework does not report them."""
    content = build(state, config, ticket, head=head, now=now, software=software)
    stages = {stage: _in_use(model) for stage, model in content.models}
    return content.model_copy(
        update={
            "statement": f"{content.statement} {LIMITS}",
            "models": Stages[ModelFacts](**stages),
            "deleted_models": (),
        }
    )


def _in_use(model: ModelFacts | None) -> ModelFacts | None:
    """The rules mark an older model as deleted. Here no model was deleted."""
    if model is None or model.status != ModelStatus.DELETED.value:
        return model
    return model.model_copy(update={"status": ModelStatus.WITHDRAWN.value})
