"""The model that is exported if none is named."""

from __future__ import annotations

import pytest
from tests.server.core.builders import Federation, config

from puf_common.errors import NotNow
from puf_server.core.state.rounds import RoundKind
from puf_server.core.unlearning import model_versions


def test_the_initial_model_is_not_the_newest_ready_one() -> None:
    f = Federation(config())
    f.join("a", "b", "c")
    assert model_versions.newest_ready(f.state).version == 0
    f.train()
    assert model_versions.newest_ready(f.state).version == 2
    f.file("b")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    with pytest.raises(NotNow, match="model 3 is unlearned; wait until recovery is over"):
        model_versions.newest_ready(f.state)
    f.answer_evaluation(0.8)
    assert model_versions.newest_ready(f.state).version == 3
