"""The data of a request is compared with the data of training, while there is something to unlearn."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from puf_client.options import UnlearnOptions
from puf_client.session.samples import KnownSamples
from puf_client.state.directory import StateDirectory
from puf_client.state.usage import SampleUsage
from puf_client.transport.base import Transport
from puf_client.unlearning.data_check import check_data
from puf_client.unlearning.request import Plan
from puf_common.errors import Mismatch
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

IDS = [f"patient-{i}" for i in range(6)]
# The check needs no server.
NO_SERVER = cast(Transport, None)


def test_a_completed_request_for_samples_that_were_never_trained_on_is_shown_again(tmp_path: Path) -> None:
    state = StateDirectory.of("f", "a", tmp_path)
    # The request for samples 0 and 1 was completed before the first round.
    SampleUsage(state).note(IDS, np.array([2, 3, 4, 5]), number=1, unlearning=False, membership=1)
    roster = pb.RosterEntry(membership=1, samples=4, first_round=1, last_round=1, active=True)
    request = tk.UnlearningRequest(request_key="r", scope=tk.SCOPE_SAMPLES, forget_samples=2, retain_samples=4)
    options = UnlearnOptions(name="a", data="d")
    samples = KnownSamples(IDS, state, NO_SERVER)
    for state_now in (tk.TICKET_STATE_PENDING, tk.TICKET_STATE_COMPLETED):
        wanted = Plan(request, tuple(IDS[:2]), tk.Ticket(id="t", state=state_now, request=request), (0, 1))
        if state_now == tk.TICKET_STATE_COMPLETED:
            check_data(samples, wanted, roster, options)
        else:
            with pytest.raises(Mismatch, match="never trained on"):
                check_data(samples, wanted, roster, options)
